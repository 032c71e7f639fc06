//! The driver's library: the addresses of its calls, its errors, and what it says about GPUs.
//!
//! `cudarc` finds the library and knows the signatures of its calls. Its own functions are not
//! used, for two reasons. They panic if the library lacks a call. And they return an enum of the
//! errors that were known when `cudarc` was made, so the code of a newer error would be undefined
//! behaviour. [`Driver`] has the addresses of all calls that are used here, found at once, with
//! codes as numbers; the compiler compares the other types with those of `cudarc`.
//!
//! Threading: the driver's calls may be made from all threads at once.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::super::{DeviceError, DeviceFacts, Unavailable};
use super::DRIVER_VERSION_MIN;

const SUCCESS: c_uint = sys::CUresult::CUDA_SUCCESS as c_uint;
pub(super) const NOT_READY: c_uint = sys::CUresult::CUDA_ERROR_NOT_READY as c_uint;
const NO_DEVICE: c_uint = sys::CUresult::CUDA_ERROR_NO_DEVICE as c_uint;

/// The names under which the driver's library is looked for, without those that only other systems
/// have.
fn names() -> String {
    let mut names = cudarc::get_lib_name_candidates("cuda");
    names.retain(|name| name.starts_with("libcuda.so"));
    names.dedup();
    names.join(", ")
}

/// The addresses of the driver's calls, and a proof that `cudarc` has the same parameters for them.
macro_rules! calls {
    (
        numbers { $($number:ident($($numbered:ty),*);)* }
        same { $($same:ident($($parameter:ty),*);)* }
    ) => {
        calls! { table $($number($($numbered),*);)* $($same($($parameter),*);)* }

        $(const _: unsafe fn($($parameter),*) -> sys::CUresult = sys::$same;)*
    };
    (table $($name:ident($($parameter:ty),*);)*) => {
        /// The calls, in a library that is never unloaded: `cudarc` has it in a static.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($parameter),*) -> c_uint,)*
        }

        impl Driver {
            /// Finds the library and all calls in it.
            #[allow(non_snake_case)]
            pub(super) fn load() -> Result<Driver, Unavailable> {
                // SAFETY: loading the driver's library runs its initialisers, as in every program
                // that uses CUDA. `culib` panics only if the library is not there.
                let library = unsafe {
                    if !sys::is_culib_present() {
                        return Err(Unavailable::NoLibrary {
                            looked_for: names(),
                        });
                    }
                    sys::culib()
                };
                let mut missing: Vec<&str> = Vec::new();
                $(
                    // SAFETY: the signature is that of `cudarc`, except that C's enum of codes is
                    // what it is for the compiler of C, an unsigned int.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($parameter),*) -> c_uint>(
                            concat!(stringify!($name), "\0").as_bytes(),
                        )
                    };
                    if $name.is_err() {
                        missing.push(stringify!($name));
                    }
                )*
                if let ($(Ok($name),)*) = ($($name,)*) {
                    return Ok(Driver { $($name: *$name,)* });
                }
                let calls = missing.join(", ");
                Err(Unavailable::MissingCalls { calls })
            }
        }
    };
}

calls! {
    // `cudarc` has its enum of errors as the first parameter.
    numbers {
        cuGetErrorName(c_uint, *mut *const c_char);
        cuGetErrorString(c_uint, *mut *const c_char);
    }
    same {
        cuDriverGetVersion(*mut c_int);
        cuInit(c_uint);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut sys::CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
        cuDeviceGetAttribute(*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, sys::CUdevice);
        cuDeviceTotalMem_v2(*mut usize, sys::CUdevice);
        cuCtxCreate_v2(*mut sys::CUcontext, c_uint, sys::CUdevice);
        cuCtxPushCurrent_v2(sys::CUcontext);
        cuCtxPopCurrent_v2(*mut sys::CUcontext);
        cuCtxDestroy_v2(sys::CUcontext);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuModuleLoadDataEx(
            *mut sys::CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void
        );
        cuModuleGetFunction(*mut sys::CUfunction, sys::CUmodule, *const c_char);
        cuModuleUnload(sys::CUmodule);
        cuMemAlloc_v2(*mut sys::CUdeviceptr, usize);
        cuMemFree_v2(sys::CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuStreamCreate(*mut sys::CUstream, c_uint);
        cuStreamQuery(sys::CUstream);
        cuStreamWaitEvent(sys::CUstream, sys::CUevent, c_uint);
        cuStreamDestroy_v2(sys::CUstream);
        cuMemcpyHtoDAsync_v2(sys::CUdeviceptr, *const c_void, usize, sys::CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, sys::CUdeviceptr, usize, sys::CUstream);
        cuMemsetD8Async(sys::CUdeviceptr, c_uchar, usize, sys::CUstream);
        cuLaunchKernel(
            sys::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
            sys::CUstream, *mut *mut c_void, *mut *mut c_void
        );
        cuEventCreate(*mut sys::CUevent, c_uint);
        cuEventRecord(sys::CUevent, sys::CUstream);
        cuEventQuery(sys::CUevent);
        cuEventElapsedTime(*mut f32, sys::CUevent, sys::CUevent);
        cuEventDestroy_v2(sys::CUevent);
    }
}

/// Makes a call: its name and its code.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        (stringify!($name), ($driver.$name)($($argument),*))
    };
}
pub(super) use call;

impl Driver {
    /// The error of a call, if it is one.
    pub(super) fn check(&self, (what, code): (&'static str, c_uint)) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        let is_sticky = is_sticky(code);
        let lost = match is_sticky {
            true => "; the GPU has to be opened again, and if that fails, the process restarted",
            false => "",
        };
        let advice = advice(code).map_or(String::new(), |advice| format!("; {advice}"));
        let detail = format!("{}{advice}{lost}", self.text(code));
        Err(DeviceError::Call {
            what,
            detail,
            is_sticky,
        })
    }

    /// The driver's name of a code, and its text.
    fn text(&self, code: c_uint) -> String {
        type Ask = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
        let ask = |ask: Ask| {
            let mut text = ptr::null();
            // SAFETY: the driver writes one pointer, to a text that it never changes, or null.
            let text = unsafe {
                let code = ask(code, &mut text);
                (code == SUCCESS && !text.is_null()).then(|| CStr::from_ptr(text))
            };
            text.map(|text| text.to_string_lossy().into_owned())
        };
        match (ask(self.cuGetErrorName), ask(self.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
            (Some(name), None) => format!("{name} ({code})"),
            (None, _) => format!("an error with the code {code}, which the driver does not name"),
        }
    }

    /// Initialises the driver: the version of CUDA that it supports, and how many GPUs it sees.
    pub(super) fn begin(&self) -> Result<((u32, u32), u32), Unavailable> {
        let mut version = 0;
        // SAFETY: the driver writes one number. This call needs no initialised driver.
        self.check(unsafe { call!(self, cuDriverGetVersion(&mut version)) })?;
        let version = u32::try_from(version).unwrap_or(0);
        let found = (version / 1000, version % 1000 / 10);
        if found < DRIVER_VERSION_MIN {
            let needed = DRIVER_VERSION_MIN;
            return Err(Unavailable::OldDriver { found, needed });
        }
        let no_device = |call: (&'static str, c_uint)| match call.1 {
            NO_DEVICE => Err(Unavailable::NoDevice {
                detail: format!("{}: {}", call.0, self.text(NO_DEVICE)),
            }),
            _ => Ok(self.check(call)?),
        };
        // SAFETY: 0 is the only value of the flags. Later calls do nothing.
        no_device(unsafe { call!(self, cuInit(0)) })?;
        let mut count = 0;
        // SAFETY: the driver writes one number.
        no_device(unsafe { call!(self, cuDeviceGetCount(&mut count)) })?;
        match u32::try_from(count) {
            Ok(count @ 1..) => Ok((found, count)),
            _ => Err(Unavailable::NoDevice {
                detail: format!("cuDeviceGetCount: {count}"),
            }),
        }
    }

    /// The driver's handle of a GPU.
    pub(super) fn device(&self, index: u32) -> Result<sys::CUdevice, DeviceError> {
        let mut device = 0;
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the driver writes one number.
        self.check(unsafe { call!(self, cuDeviceGet(&mut device, index)) })?;
        Ok(device)
    }

    /// What is known about a GPU without a context.
    pub(super) fn facts(
        &self,
        index: u32,
        driver_version: (u32, u32),
    ) -> Result<DeviceFacts, DeviceError> {
        let device = self.device(index)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver writes one number.
            self.check(unsafe {
                call!(self, cuDeviceGetAttribute(&mut value, attribute, device))
            })?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        use sys::CUdevice_attribute as Attribute;
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessor_count = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut memory_bytes = 0;
        // SAFETY: the driver writes one number.
        self.check(unsafe { call!(self, cuDeviceTotalMem_v2(&mut memory_bytes, device)) })?;
        type Ask = unsafe extern "C" fn(*mut c_char, c_int, sys::CUdevice) -> c_uint;
        let text = |what, ask: Ask| {
            let mut text = [0u8; 256];
            // SAFETY: the driver writes no more bytes than the length that it gets.
            let code = unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int, device) };
            self.check((what, code))?;
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            Ok::<_, DeviceError>(text.to_string_lossy().into_owned())
        };
        Ok(DeviceFacts {
            index,
            name: text("cuDeviceGetName", self.cuDeviceGetName)?,
            memory_bytes: memory_bytes as u64,
            memory_free_bytes: None,
            capability,
            driver_version,
            pci_bus_id: text("cuDeviceGetPCIBusId", self.cuDeviceGetPCIBusId)?,
            multiprocessor_count,
            is_emulated: false,
        })
    }
}

/// Whether all later calls in the context fail once a call had this code.
fn is_sticky(code: c_uint) -> bool {
    use sys::CUresult as Code;
    const STICKY: [Code; 14] = [
        Code::CUDA_ERROR_DEINITIALIZED,
        Code::CUDA_ERROR_ECC_UNCORRECTABLE,
        Code::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS,
        Code::CUDA_ERROR_LAUNCH_TIMEOUT,
        Code::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        Code::CUDA_ERROR_ASSERT,
        Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Code::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        Code::CUDA_ERROR_MISALIGNED_ADDRESS,
        Code::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        Code::CUDA_ERROR_INVALID_PC,
        Code::CUDA_ERROR_LAUNCH_FAILED,
        Code::CUDA_ERROR_EXTERNAL_DEVICE,
    ];
    // CUDA_ERROR_CONTAINED and CUDA_ERROR_TENSOR_MEMORY_LEAK of later drivers.
    const LATER: [c_uint; 2] = [226, 721];
    LATER.contains(&code) || STICKY.iter().any(|sticky| *sticky as c_uint == code)
}

/// What the user can do about a code.
fn advice(code: c_uint) -> Option<&'static str> {
    Some(match code {
        2 => {
            "another program may have the memory (see `nvidia-smi`): end it, or take less (the \
             option `--gpu-memory` of `silt`, or `GpuOptions` of a program)"
        }
        34 => {
            "a stub of the library for linkers is found before the driver's: remove it from \
             LD_LIBRARY_PATH"
        }
        46 => "another program may have the GPU for itself: see `nvidia-smi -q -d COMPUTE`",
        214 => "the GPU's memory is faulty: see `nvidia-smi -q -d ECC`",
        221 => {
            "libnvidia-ptxjitcompiler is missing: install all of the driver, or give the \
             container NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        222 => "install a driver of version 550 or later",
        223 => "unset CUDA_DISABLE_PTX_JIT",
        802 => "the service nvidia-fabricmanager may have to be started",
        803 => "the driver was updated: restart the machine",
        _ => return None,
    })
}
