"""What is wrong with what a request says. One function for each code; its arguments are those of
the code, of which `given` is what was said, as a literal in few characters."""

from __future__ import annotations

from singularity_scheduler.text.phrases import count

# -- any key --------------------------------------------------------------------------------


def unknown_key(given: str, near: str | None, known: tuple[str, ...]) -> str:
    hint = f"did you mean '{near}'? " if near is not None else ""
    return f"{given} is not known; {hint}known are {', '.join(known)}"


def not_a_number(key: str, given: str) -> str:
    return f"{key} must be a number, 0 or more, not {given}"


def not_a_line_of_text(key: str, most: int) -> str:
    return f"{key} must be printable text of at most {most} characters"


# -- runs on several nodes -----------------------------------------------------------------


def not_divisible(number: int, nodes: int) -> str:
    return (
        f"{count(number)} cannot be divided among {nodes} nodes: ask for {nodes}, {2 * nodes}, "
        f"{3 * nodes} or another multiple of {nodes}"
    )


def nodes_out_of_range(most: int, given: str) -> str:
    return f"nodes must be a whole number from 1 to {most}, not {given}"


def nodes_need_a_command(nodes: int) -> str:
    return f"a run on {nodes} nodes must be a command (run.command): a notebook runs on one node"


def nodes_without_policy(nodes: int) -> str:
    return (
        f"a run on {nodes} nodes has no scale policy yet: leave elastic and scale_policy out, "
        "or nodes"
    )


def nodes_without_share(nodes: int) -> str:
    return f"a run on {nodes} nodes has whole devices: leave device_share out, or nodes"


# -- goals of groups -----------------------------------------------------------------------


def not_a_condition(given: str) -> str:
    return f"stop_when must be a name, a comparison and a number, such as loss<0.01, not {given}"


def not_an_objective() -> str:
    return "objective must have primary_metric and goal, and nothing else"


def not_a_goal(given: str) -> str:
    return f"the goal of an objective is minimize or maximize, not {given}"


def not_a_metric() -> str:
    return "primary_metric must be the name of a recorded value"


# -- groups --------------------------------------------------------------------------------


def group_without_run() -> str:
    return "session.run is missing: a group is made of runs"


def group_with_launch() -> str:
    return "session.launch does not go with a group: its members are runs"


def group_without_members() -> str:
    return "members must be a list of what tells the members apart, at least one"


def group_too_large(number: int, most: int) -> str:
    return f"a group of {number} is too large: it may have {most} members"


def member_on_several_nodes(nodes: int) -> str:
    return (
        f"a member of a group is on one node: leave nodes out, or submit the {nodes} nodes' "
        "runs one by one"
    )


def member_without_values(number: int) -> str:
    return f"values of member {number} must be an object, such as {{'lr': 0.1}}"


def values_not_finite(number: int) -> str:
    return (
        f"values of member {number} hold a number that JSON does not have (infinity or not a "
        "number): give it as text and convert it in the notebook"
    )


def values_too_large(kib: int, number: int) -> str:
    return (
        f"the values of a member have at most {kib} KiB, and those of member {number} are "
        "longer: put larger ones in files and sweep over their names"
    )


def member_without_command(number: int) -> str:
    return f"member {number} has no command of its own: it would be as the others"


def member_with_command(number: int) -> str:
    return f"member {number} has a command, and the group runs a notebook"


def max_parallel_out_of_range(most: int, given: str) -> str:
    return f"max_parallel must be a whole number from 1 to {most}, not {given}"


def condition_is_no_text() -> str:
    return "stop_when must be text, such as loss<0.01"


def not_true_or_false(key: str) -> str:
    return f"{key} must be true or false"


# -- runs ----------------------------------------------------------------------------------


def run_is_no_object() -> str:
    return "run must be an object that says which notebook or command is run"


def run_without_notebook() -> str:
    return "run.notebook is missing: the absolute path of the notebook to run"


def not_a_kernel(given: str) -> str:
    return f"run.kernel must be the name of a kernelspec, not {given}"


def parameters_are_no_object() -> str:
    return 'run.parameters must be an object, for example {"lr": 0.1}'


def not_a_parameter_name(given: str) -> str:
    return f"{given} cannot be the name of a parameter"


def variables_are_no_texts() -> str:
    return 'run.variables must map names to texts, for example {"LANG": "C.UTF-8"}'


def not_a_variable(given: str) -> str:
    return f"{given} cannot be a variable of the environment"


def variable_of_the_platform(name: str) -> str:
    return f"{name} is set by the platform and cannot be given to a run"


def output_is_the_notebook() -> str:
    return "run.output is the notebook itself: name another file"


def run_too_large(kib: int) -> str:
    return (
        f"the parameters and variables of a run have at most {kib} KiB together: put larger "
        "ones in a file"
    )


def ranked_not_true_or_false(given: str) -> str:
    return f"run.ranked must be true or false, not {given}"


def ranked_notebook() -> str:
    return "run.ranked is for commands: a notebook is run once"


def not_a_command(given: str) -> str:
    return f"run.command must be the text of a command, not {given}"


def not_with_a_command(key: str) -> str:
    return f"run.{key} does not go with run.command: send one of them"


def command_without_folder() -> str:
    return "run.folder is missing: the absolute path of the folder to run in"


def timeout_out_of_range(key: str, most: int, given: str) -> str:
    return f"{key} must be a whole number of seconds from 1 to {most}, not {given}"


def retries_out_of_range(most: int, given: str) -> str:
    return f"run.max_retries must be a whole number from 0 to {most}, not {given}"


def metadata_is_no_object() -> str:
    return 'run.metadata must be an object, for example {"tags": {"team": "vision"}}'


def metadata_too_large(kib: int) -> str:
    return f"run.metadata has at most {kib} KiB"


def not_finite(key: str) -> str:
    return (
        f"run.{key} holds a number that JSON does not have (infinity or not a number): give "
        "it as text and convert it in the notebook"
    )


def path_not_absolute(key: str, given: str) -> str:
    return f"run.{key} must be an absolute path, not {given}"


def path_not_printable(key: str, given: str) -> str:
    return f"run.{key} must be printable, not {given}"


# -- sizes ---------------------------------------------------------------------------------


def _wanted(largest: int | None) -> str:
    """`largest`: what a session can have; None: nobody said."""
    if largest is None:
        return "ask for 1 or more"
    return "ask for 1" if largest == 1 else f"ask for 1 to {largest}"


def devices_not_whole(given: str, largest: int | None) -> str:
    return f"devices must be a whole number, not {given}: {_wanted(largest)}"


def too_few_asked(number: int, largest: int | None) -> str:
    return f"{number} devices asked, but a session needs at least 1: {_wanted(largest)}"


def too_many_asked(number: int, largest: int) -> str:
    return (
        f"{count(number)} asked, but this cluster has at most {largest} for one session: "
        f"{_wanted(largest)}"
    )


def share_of_several(share: float, given: str) -> str:
    return f"device_share {share:g} is a part of one device: it does not go with {given} devices"


def cluster_without_devices() -> str:
    return "this cluster has no device at all"


def policy_asks_for_more(least: int, most: int) -> str:
    return (
        f"scale_policy asks for at least {least} devices, more than the {most} that the "
        "session has at most"
    )


def share_with_policy() -> str:
    return "a session that shares one device has no scale policy: say one of them"


def elastic_not_true_or_false(given: str) -> str:
    return f"elastic must be true or false, not {given}"


def inelastic_with_policy() -> str:
    return "elastic is false and there is a scale_policy: say one of them"


def policy_is_no_object(key: str, given: str) -> str:
    return f'scale_policy must be an object, for example {{"{key}": [1, 2, 4]}}, not {given}'


def policy_says_both(key: str, least_key: str, most_key: str) -> str:
    return f"scale_policy has {key} and {least_key} or {most_key}: say one of them"


def counts_are_no_list(key: str, given: str) -> str:
    return (
        f"scale_policy.{key} must be a list of numbers of devices that rise, for example [1, "
        f"2, 4], not {given}"
    )


def not_a_policy_number(key: str, given: str) -> str:
    return f"scale_policy.{key} must be a number of devices, 1 or more, not {given}"


def not_a_share(given: str) -> str:
    return f"device_share must be a number from 0.001 to 1, the part of one device, not {given}"


# -- sessions ------------------------------------------------------------------------------


def no_such_device_here(given: str, there: tuple[str, ...]) -> str:
    return f"there is no device {given} here: pick from {', '.join(there) or 'none'}"


def unknown_tier(given: str) -> str:
    return f"unknown tier {given}: pick premium, standard or basic"


def unknown_kind(given: str) -> str:
    return f"unknown kind {given}: pick interactive or batch"


def not_a_session_name(most: int) -> str:
    return f"a session's name must be printable text of at most {most} characters"


def run_not_batch() -> str:
    return "a run of a notebook is a batch session: kind must be batch"


def not_a_virtual_cluster(given: str) -> str:
    return (
        "virtual_cluster must be a name of letters, digits, '.', '_' and '-', or an Azure "
        f"resource id that ends in one, not {given}"
    )


def locations_are_no_list(given: str) -> str:
    return f"locations must be a list of names of clusters or regions, not {given}"


def too_many_locations(number: int, most: int) -> str:
    return (
        f"{number} locations are too many: name at most {most}, or a region instead of its clusters"
    )


def location_twice(given: str) -> str:
    return f"locations names {given} twice: once is enough"


def unknown_priority(given: str) -> str:
    return f"unknown priority {given}: pick low, medium or high"


def not_a_kernel_id(given: str) -> str:
    return f"kernel_id must be the id of a kernel, not {given}"


def launch_is_no_object() -> str:
    return "launch must be an object that says how to start the process"


def unknown_launch_mode(given: str) -> str:
    return f"unknown launch mode {given}: pick capsule or joined"


def argv_is_no_list() -> str:
    return "launch.argv must be a list of strings"


def argv_is_empty() -> str:
    return "launch.argv is empty: there is nothing to start"


def env_is_no_texts() -> str:
    return "launch.env must map names to strings"


def cwd_is_no_path() -> str:
    return "launch.cwd must be a path"


def connection_is_no_object() -> str:
    return "launch.connection must be an object (Jupyter connection information)"


def owner_is_no_process() -> str:
    return "launch.owner_pid must be the process id of the joining process"


def joined_without_owner() -> str:
    return "launch.owner_pid is missing: a joined session belongs to a process"
