"""`torch.cuda.get_device_properties` and what else is told about a device."""

from __future__ import annotations

import os
import uuid

from singularity_proxy.worker import link
from singularity_proxy.worker.native import native

CAPABILITY = (9, 0)
"""Of cpu devices, and told until a GPU has been attached once."""
NAME = "Singularity device proxy"


class DeviceProperties:
    """What `torch.cuda.get_device_properties` returns; memory sizes in bytes. Asking takes no
    device: a physical one's own facts are known after it was attached for the first time."""

    def __init__(self, index: int) -> None:
        native.open_ring(index)
        known, facts = link.info(index), native.device_facts(index)
        packed = int(facts["capability"])
        self.name = facts["name"] or NAME
        self.major, self.minor = (packed >> 16, packed & 0xFFFF) if packed else CAPABILITY
        limit = known.memory_capacity_bytes if known else 0
        self.total_memory = limit or facts["memory"]
        self.multi_processor_count = facts["multiprocessors"] or os.cpu_count() or 1
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 49152
        self.shared_memory_per_multiprocessor = 49152
        self.L2_cache_size = 1 << 20
        self.clock_rate = self.memory_clock_rate = 0
        self.memory_bus_width = 0
        self.gcnArchName = ""
        self.uuid = uuid.UUID(native.device_uuid(native.virtual_device(index)))
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceProperties) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.uuid)

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )
