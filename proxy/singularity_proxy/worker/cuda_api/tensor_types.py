"""`torch.cuda.FloatTensor` and its kin, which a CPU build of torch refuses to make.

They are older than `dtype` and `device`, and programs still name them. A CPU build has them for
`isinstance` and `Tensor.type` alone: what makes a tensor of them asks how torch was built.
"""

from __future__ import annotations

from typing import Any


class TensorType(type):
    """The class of the types below; stands for torch's own type of that name (`original`)."""

    original: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:  # dtype, layout, is_cuda, is_sparse
        return getattr(cls.original, name)

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return str(cls.original.__name__)

    def __repr__(cls) -> str:
        return repr(cls.original)


def _make(torch: Any, original: Any) -> TensorType:
    def __new__(cls: TensorType, *args: Any, **kwargs: Any) -> Any:
        like = torch.empty((0,), dtype=original.dtype, layout=original.layout, device="cuda")
        return like.new(*args, **kwargs)

    contents = {"__new__": __new__, "__module__": original.__module__, "original": original}
    # The whole name: Tensor.type takes it from there.
    return TensorType(_full_name(original), (), contents)


def _full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def apply(torch: Any) -> None:
    """Called by `patches` right after a CPU build of `torch` was executed."""
    dense: dict[Any, TensorType] = {}
    for module in (torch.cuda, torch.cuda.sparse):
        for name, original in list(vars(module).items()):
            if type(original) is type(torch.FloatTensor) and original.is_cuda:
                made = _make(torch, original)
                setattr(module, name, made)
                torch._tensor_classes.discard(original)
                torch._tensor_classes.add(made)
                if module is torch.cuda:
                    dense[made] = dense[_full_name(original)] = made
    _default_type(torch, dense)


def _default_type(torch: Any, dense: dict[Any, TensorType]) -> None:
    """torch.set_default_tensor_type: dtype and device of what is made without naming them."""
    set_host_type = torch.set_default_tensor_type

    def make(kind: type, *args: Any, **kwargs: Any) -> Any:
        """Stands for torch.Tensor.__new__: torch.Tensor(2, 3) follows the default device."""
        if kind is not torch.Tensor:
            return torch._C.TensorBase.__new__(kind, *args, **kwargs)
        return torch.empty(0).new(*args, **kwargs)

    def set_default_tensor_type(t: Any) -> None:
        if t in dense:
            torch.set_default_dtype(dense[t].dtype)
            torch.set_default_device("cuda")
            torch.Tensor.__new__ = staticmethod(make)
            return
        set_host_type(t)
        if "__new__" in vars(torch.Tensor):
            del torch.Tensor.__new__
            torch.set_default_device(None)

    torch.set_default_tensor_type = set_default_tensor_type
