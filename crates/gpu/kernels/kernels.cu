// All kernels, for a GPU. `cargo xtask ptx` compiles this file.
#include "scan.h"
#include "unpack.h"
#include "sort.h"
#include "retain.h"
#include "layout.h"
#include "pack.h"
#include "lz4.h"
