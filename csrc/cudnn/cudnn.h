// Another name of cudnn/handle.h, for python/.
#pragma once

#include "cudnn/handle.h"
