"""``python -m singularity_scheduler.service``: what JupyterHub runs as the managed service."""

from singularity_scheduler.service.app import SchedulerApp

if __name__ == "__main__":
    SchedulerApp.launch_instance()
