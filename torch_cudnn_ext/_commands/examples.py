"""The examples that the help of each command ends with."""

_LINE = "'conv_fwd x=f32[32,64,56,56]:nchw w=f32[64,64,3,3]:nchw pad=1'"

# What follows the name of the program, by command.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "profile": (
        f"profile {_LINE}",
        "profile --problems resnet50 --passes fwd --batch 1",
        "profile --model resnet50 --dtype bf16 --channels-last --report resnet50.html",
    ),
    "list": (
        f"list {_LINE} --target h200",
        "list --model resnet18 --inference --policy 'backends=cudnn;deterministic'",
    ),
    "bench": (
        "bench --problems resnet50 --passes fwd,bwd --dtype f16 --channels-last",
        "bench --modules MaxPool2d,BatchNorm2d",
        "bench --networks resnet50,vgg16 --dtype f32,bf16",
    ),
    "tune": (
        "tune --model resnet50 --batch 64 --dtype bf16 --channels-last",
        "tune --problems resnet50 --max-workspace 256MiB --table tuning.jsonl",
    ),
    "compare": ("compare before.json after.json --report changes.html",),
    "coverage": ("coverage --model resnet50 --inference --backends cudnn",),
    "explain": (
        "explain --model resnet18 --inference --batch 1",
        "explain --model resnet50 --policy autotune --report resnet50.html",
    ),
    "optimize": (
        "optimize --model resnet50 --batch 64 --dtype bf16 --channels-last --save resnet50.tce",
    ),
    "info": ("info", "info --errata --cudnn 9.28.1"),
    "verify": ("verify --errata",),
    "store": (
        "store ls",
        "store show conv_fwd",
        "store prune --older-than 90 --dry-run",
    ),
    "completion": (
        "completion bash >> ~/.bashrc",
        "completion zsh > ~/.zfunc/_torch_cudnn_ext",
        "completion fish > ~/.config/fish/completions/torch_cudnn_ext.fish",
    ),
    "help": ("help policy", "help tune"),
}


def epilog_of(name: str) -> str:
    """The end of a command's help."""
    lines = [f"  torch_cudnn_ext {example}" for example in EXAMPLES[name]]
    return "\n".join(["\b", "Examples:", *lines])
