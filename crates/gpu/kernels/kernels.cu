// All kernels. `cargo xtask ptx` compiles this file to `siltstone.ptx`.

#include "prove.h"
