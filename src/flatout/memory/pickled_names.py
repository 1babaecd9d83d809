"""Names in pickles: dtypes and storages, what torch allows, and what no model has any business with."""

import re

ITEM_BYTES = {
    **dict.fromkeys(("complex128",), 16),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "qint8", "quint8", "quint4x2", "quint2x4"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)], 1),
}
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
UNTYPED = "torch.storage.UntypedStorage"

TENSOR_CALLS = {
    f"torch._utils.{name}"
    for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
}
DTYPE_GIVEN = "torch._utils._rebuild_tensor_v3"
# Their first argument is the tensor.
WRAPPERS = {
    f"torch._utils.{name}"
    for name in (
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_device_tensor_from_cpu_tensor",
    )
}
SUBCLASS_CALL = "torch._tensor._rebuild_from_type_v2"
MAPPINGS = {"collections.OrderedDict", "collections.Counter", "collections.defaultdict", "builtins.dict"}
# What torch.load takes with weights_only=True, beside dtypes and storages.
_ALLOWED = (
    TENSOR_CALLS
    | WRAPPERS
    | {
        SUBCLASS_CALL,
        UNTYPED,
        "collections.OrderedDict",
        "collections.Counter",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.storage.TypedStorage",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch._utils._rebuild_sparse_tensor",
        "torch._utils._rebuild_meta_tensor_no_storage",
        "torch._utils._rebuild_nested_tensor",
        "torch._utils._rebuild_wrapper_subclass",
        "torch._utils._rebuild_device_tensor_from_numpy",
        "torch.per_tensor_affine",
        "torch.per_tensor_symmetric",
        "torch.per_channel_affine",
        "torch.per_channel_symmetric",
        "torch.per_channel_affine_float_qparams",
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.set",
        "builtins.complex",
    }
)
STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")

# Modules that no model needs, and that run programs, open connections or make code.
_HOSTILE_MODULES = re.compile(
    "os|posix|nt|sys|subprocess|pty|commands|popen2|shutil|socket|ssl|http|httplib|urllib|urllib2|"
    "requests|ftplib|smtplib|telnetlib|webbrowser|ctypes|_ctypes|cffi|importlib|imp|runpy|zipimport|"
    "pkgutil|pip|setuptools|ensurepip|site|code|codeop|pdb|bdb|timeit|trace|profile|cProfile|doctest|"
    "pickle|_pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|multiprocessing|_posixsubprocess|"
    "threading|_thread|asyncio|concurrent|signal|tempfile|gc|inspect|idlelib|distutils"
)
# The same, reached as an attribute of a module that imported them.
_HOSTILE_PARTS = re.compile(
    "os|posix|nt|sys|subprocess|builtins|__builtins__|importlib|ctypes|socket|shutil|runpy|pickle|"
    "__globals__|__subclasses__|__getattribute__|__import__|__loader__|__code__"
)
_HOSTILE_NAMES = (
    "types.FunctionType",
    "types.CodeType",
    "types.LambdaType",
    "types.ModuleType",
    "operator.attrgetter",
    "operator.methodcaller",
    "operator.call",
    "io.open",
    "io.FileIO",
    "_io.open",
    "_io.FileIO",
    "numpy.load",
    "numpy.fromfile",
    "numpy.testing",
    "numpy.f2py",
    "numpy.distutils",
    "torch.load",
    "torch.serialization.load",
    "torch.storage._load_from_bytes",
    "torch.hub",
    "torch.jit",
    "torch.package",
    "torch.ops",
    "torch.classes",
    "torch.multiprocessing",
    "torch.fx.graph_module",
    "torch.utils.cpp_extension",
    "torch.utils.bottleneck",
    "torch.utils.collect_env",
    "torch.utils.model_zoo",
    "torch.utils._config_module",
)
GETATTR = "builtins.getattr"
_PLAIN_BUILTINS = re.compile(
    "object|int|float|str|bytes|bytearray|bool|complex|list|tuple|dict|set|frozenset|slice|range|"
    "Ellipsis|NotImplemented"
)
OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_ERROR = re.compile(r"\w+(Error|Exception|Warning|Exit|Interrupt|Iteration)")


def is_hostile(name: str) -> bool:
    """Whether unpickling something of this name serves no model, and can run what it likes.

    A name that is not hostile is not thereby harmless: no list of what is dangerous is complete.
    """
    parts = re.split(r"[. ]", name)
    first, rest = parts[0], parts[1:]
    if first == "builtins":
        plain = len(rest) == 1 and (_PLAIN_BUILTINS.fullmatch(rest[0]) or _ERROR.fullmatch(rest[0]))
        return not (plain or name == GETATTR)
    if _HOSTILE_MODULES.fullmatch(first) or any(_HOSTILE_PARTS.fullmatch(part) for part in rest):
        return True
    return any(name == hostile or name.startswith(hostile + ".") for hostile in _HOSTILE_NAMES)


def is_allowed(name: str) -> bool:
    """Whether torch.load takes it with weights_only=True."""
    module, _, last = name.rpartition(".")
    if module == "torch" and last in ITEM_BYTES:
        return True
    return name in _ALLOWED or (module in STORAGE_MODULES and last in STORAGES)
