"""Compiles kernels to PTX with NVRTC, and writes how many registers they take.

`cargo xtask ptx` runs this in a virtual environment that has the wheels named in xtask/src/ptx.rs.
The one argument is the folder of the sources. It has kernels.cu, and gets siltstone.ptx, whose
first line has the hash of the sources, and registers.md. crates/gpu/tests/ptx.rs computes the same
hash.
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

import nvidia.cuda_nvcc
import nvidia.cuda_nvrtc
import xxhash

OPTIONS = ["--gpu-architecture=compute_80", "-default-device", "--std=c++17"]
ARCHITECTURES = ["sm_80", "sm_90"]


def source_hash(folder):
    """The xxh3 of all sources, by name: name, a zero byte, length in 8 bytes, bytes."""
    sources = [path for path in folder.iterdir() if path.suffix in (".cu", ".h")]
    state = xxhash.xxh3_64()
    for path in sorted(sources, key=lambda path: path.name.encode()):
        data = path.read_bytes()
        state.update(path.name.encode() + b"\0" + len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


def compiled(folder):
    """The PTX of kernels.cu."""
    library = pathlib.Path(nvidia.cuda_nvrtc.__path__[0]) / "lib" / "libnvrtc.so.12"
    nvrtc = ctypes.CDLL(str(library))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(name, *arguments):
        code = getattr(nvrtc, name)(*arguments)
        if code:
            return f"{name}: {nvrtc.nvrtcGetErrorString(code).decode()}"

    def must(name, *arguments):
        wrong = call(name, *arguments)
        if wrong:
            sys.exit(wrong)

    def text(what):
        size = ctypes.c_size_t()
        must(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        must(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()

    source = (folder / "kernels.cu").read_bytes()
    program = ctypes.c_void_p()
    must("nvrtcCreateProgram", ctypes.byref(program), source, b"kernels.cu", 0, None, None)
    options = [option.encode() for option in [*OPTIONS, f"--include-path={folder}"]]
    array = (ctypes.c_char_p * len(options))(*options)
    wrong = call("nvrtcCompileProgram", program, len(options), array)
    log = text("ProgramLog").strip()
    if log:
        print(log, file=sys.stderr)
    if wrong:
        sys.exit(wrong)
    return text("PTX")


def registers(ptx):
    """For each kernel, in the order of the text, and each architecture: what ptxas says."""
    ptxas = pathlib.Path(nvidia.cuda_nvcc.__path__[0]) / "bin" / "ptxas"
    found = {}
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "kernels.ptx"
            source.write_text(ptx)
            command = [ptxas, f"-arch={architecture}", "-v", source, "-o", f"{folder}/kernels"]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        pattern = (
            r"Compiling entry function '(\w+)'.*?Function properties for \1\s+"
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
            r".*?Used (\d+) registers"
        )
        for name, stack, stores, loads, used in re.findall(pattern, done.stderr, re.DOTALL):
            found[name, architecture] = (used, stores, loads, stack)
    names = re.findall(r"\.entry (\w+)\(", ptx)
    if sorted(found) != sorted((name, arch) for name in names for arch in ARCHITECTURES):
        sys.exit(f"ptxas named other kernels than the PTX has: {sorted(found)}, {names}")
    return [(name, arch, *found[name, arch]) for name in names for arch in ARCHITECTURES]


def main():
    folder = pathlib.Path(sys.argv[1])
    ptx = compiled(folder)
    rows = registers(ptx)
    (folder / "siltstone.ptx").write_text(f"// sources {source_hash(folder)}\n{ptx}")
    table = [
        "# Registers of the kernels\n\n"
        "This page is written by `cargo xtask ptx`, and is not edited by hand. It has what ptxas\n"
        "says of each kernel: registers of a thread, and bytes of a thread.\n\n"
        "| kernel | architecture | registers | spill stores | spill loads | stack |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
    ]
    table += [f"| {' | '.join(row)} |\n" for row in rows]
    (folder / "registers.md").write_text("".join(table))
    spilled = sorted({row[0] for row in rows if row[3] != "0" or row[4] != "0"})
    print(f"{len(rows) // len(ARCHITECTURES)} kernels; with spills: {', '.join(spilled) or 'none'}")


main()
