#include "kernels/cuda/kernels.h"
