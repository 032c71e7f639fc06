//! NVIDIA's compiler of kernels at run time, libnvrtc, for those who develop kernels: with the
//! variable SILT_GPU_SOURCE, [`open`](crate::open) compiles the kernels in a folder instead of
//! taking those that were compiled with the crate.
//!
//! Threading: may be called from all threads at once.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use super::library::{self, calls};

/// The names of its file.
const NAMES: [&str; 4] = [
    "libnvrtc.so.12",
    "libnvrtc.so.13",
    "libnvrtc.so",
    "libnvrtc.so.11.2",
];

/// The file that includes all kernels.
const MAIN: &str = "kernels.cu";

type Program = *mut c_void;

calls! {
    nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    ) -> c_int;
    nvrtcCompileProgram(Program, c_int, *const *const c_char) -> c_int;
    nvrtcGetProgramLogSize(Program, *mut usize) -> c_int;
    nvrtcGetProgramLog(Program, *mut c_char) -> c_int;
    nvrtcGetPTXSize(Program, *mut usize) -> c_int;
    nvrtcGetPTX(Program, *mut c_char) -> c_int;
    nvrtcDestroyProgram(*mut Program) -> c_int;
}

fn load() -> Result<Calls, String> {
    let advice = "install CUDA's compiler of kernels, or unset SILT_GPU_SOURCE";
    let (_, calls) = library::load("libnvrtc", &NAMES, advice, Calls::find)?;
    Ok(calls)
}

/// A program of the library, which is destroyed when this is dropped.
struct Compilation<'a> {
    calls: &'a Calls,
    program: Program,
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created, and is not used again.
        let _ = unsafe { (self.calls.nvrtcDestroyProgram)(&mut self.program) };
    }
}

type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

impl Compilation<'_> {
    /// A text that the library has of the program.
    fn text(&self, what: &str, get_size: GetSize, get: GetText) -> Result<String, String> {
        let mut size = 0;
        // SAFETY: the program lives; the library writes one number.
        check(what, unsafe { get_size(self.program, &mut size) })?;
        let mut text = vec![0u8; size + 1];
        // SAFETY: the library writes as many bytes as it said, which end with a zero byte.
        check(what, unsafe { get(self.program, text.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("libnvrtc's {what} failed with the code {code}")),
    }
}

/// Compiles the kernels in a folder. Returns the text of the PTX, which is for the same compute
/// capability as the PTX in the crate.
///
/// # Errors
/// What is missing, or what the compiler says, as text.
pub fn compile(folder: &Path) -> Result<String, String> {
    let main = folder.join(MAIN);
    let shown = main.display();
    let source = std::fs::read(&main).map_err(|e| format!("{shown} cannot be read: {e}"))?;
    let source = CString::new(source).map_err(|_| format!("{shown} has a zero byte"))?;
    let calls = load()?;
    let (major, minor) = super::CAPABILITY_MIN;
    let options = [
        format!("--gpu-architecture=compute_{major}{minor}"),
        "-default-device".to_string(),
        "--std=c++17".to_string(),
        "--include-path=".to_string(),
    ];
    let mut options = options.map(String::into_bytes);
    // The name of a folder need not be UTF-8.
    options[3].extend_from_slice(folder.as_os_str().as_encoded_bytes());
    let options: Result<Vec<CString>, _> = options.into_iter().map(CString::new).collect();
    let options = options.map_err(|_| format!("{shown} has a zero byte in its name"))?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = ptr::null_mut();
    // SAFETY: both texts end with a zero byte, and there are no headers.
    check("nvrtcCreateProgram", unsafe {
        (calls.nvrtcCreateProgram)(
            &mut program,
            source.as_ptr(),
            c"kernels.cu".as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        )
    })?;
    let compilation = Compilation {
        calls: &calls,
        program,
    };
    // SAFETY: the program was created, and the options live as long as the call.
    let compiled = check("nvrtcCompileProgram", unsafe {
        (calls.nvrtcCompileProgram)(program, pointers.len() as c_int, pointers.as_ptr())
    });
    if let Err(error) = compiled {
        let (size, get) = (calls.nvrtcGetProgramLogSize, calls.nvrtcGetProgramLog);
        let log = compilation.text("nvrtcGetProgramLog", size, get);
        let log = log.unwrap_or_default();
        return Err(format!("{shown}: {error}; it says: {}", log.trim()));
    }
    compilation.text("nvrtcGetPTX", calls.nvrtcGetPTXSize, calls.nvrtcGetPTX)
}
