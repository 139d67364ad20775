"""Defaults that the help of the command line names, and the code that knows PyTorch uses."""

MODEL_BATCH, IMAGE_SIZE = 32, 224  # of the images that a network of torchvision gets
NETWORK_BATCH = 64  # of the images when whole networks are compared
UNET_BATCH = 16  # the same for `unet`, whose images take more memory
DEVICES = ("cpu", "cuda")
DEFAULT_TARGET = "h200"  # a GPU that need not be there
VERIFY_TIME_LIMIT_S = 60  # for the process that looks for one erratum
DRIFT_TOLERANCE = 0.1  # the share by which times of two runs may differ
STORE_MATCHES = ("strict", "same_cudnn", "same_gpu", "any")  # which rows of the store serve
LAYOUTS = ("keep", "contiguous", "channels_last")  # of a network to optimize; or "search"
ISOLATE = ("auto", "always", "never")  # where candidates may be measured
TOLERANCE = 0.05  # of compare: a smaller relative difference is none
