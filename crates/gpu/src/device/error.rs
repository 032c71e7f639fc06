//! The errors of a device, and the reasons why there is none.

/// A call of a device that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver said so. The error may be that of an earlier call, whose work failed on the GPU.
    #[error("{what} failed: {detail}")]
    Call {
        /// The driver's call.
        what: &'static str,
        /// The driver's name of the error and its text, and what to do about it if that is known.
        detail: String,
        /// Whether all later calls of this device fail too.
        is_sticky: bool,
    },
    /// A copy of the pinned buffer may be under way.
    #[error(
        "{what}: a copy of this pinned buffer may be under way; ask for an event after the copy \
         until it has passed"
    )]
    InUse {
        /// The call.
        what: &'static str,
    },
    /// The caller's mistake. Nothing was done.
    #[error("{what} was called with {detail}")]
    Misuse {
        /// The call.
        what: &'static str,
        /// What was wrong.
        detail: String,
    },
}

impl DeviceError {
    /// The error of a caller.
    pub(crate) fn misuse(what: &'static str, detail: impl Into<String>) -> DeviceError {
        let detail = detail.into();
        DeviceError::Misuse { what, detail }
    }

    /// Whether all later calls of this device fail too, so that a new one has to be opened.
    pub fn is_sticky(&self) -> bool {
        match self {
            DeviceError::Call { is_sticky, .. } => *is_sticky,
            DeviceError::InUse { .. } | DeviceError::Misuse { .. } => false,
        }
    }

    /// The call that failed.
    pub fn what(&self) -> &'static str {
        match self {
            DeviceError::Call { what, .. }
            | DeviceError::InUse { what }
            | DeviceError::Misuse { what, .. } => what,
        }
    }
}

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There is no driver.
    #[error(
        "there is no NVIDIA driver: the loader finds no library of it (looked for {looked_for}); \
         install the driver, or give the container access to the GPU"
    )]
    NoLibrary {
        /// The file names that were tried.
        looked_for: String,
    },
    /// The library has not all calls.
    #[error(
        "the NVIDIA driver's library has no {calls}; install a driver for CUDA 12.4 or later \
         (version 550 or later)"
    )]
    MissingCalls {
        /// Those that it lacks.
        calls: String,
    },
    /// The driver cannot load the kernels.
    #[error(
        "the NVIDIA driver supports CUDA {}.{} at most, and the kernels need CUDA {}.{}; install a \
         driver of version 550 or later",
        found.0, found.1, needed.0, needed.1
    )]
    OldDriver {
        /// The version that the driver supports.
        found: (u32, u32),
        /// The version that the kernels need.
        needed: (u32, u32),
    },
    /// The driver has no GPU.
    #[error(
        "the NVIDIA driver sees no GPU ({detail}); look at `nvidia-smi` and at \
         CUDA_VISIBLE_DEVICES, and give the container access to the GPU"
    )]
    NoDevice {
        /// What the driver said.
        detail: String,
    },
    /// There are GPUs, but not with this number.
    #[error("there is no GPU {index}: the NVIDIA driver sees {count}, and the first has number 0")]
    NoSuchDevice {
        /// The number that was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// No GPU is new enough.
    #[error(
        "a GPU of compute capability {}.{} or later is needed, found {found}",
        needed.0, needed.1
    )]
    NotCapable {
        /// Names and compute capabilities.
        found: String,
        /// The least compute capability.
        needed: (u32, u32),
    },
    /// The text of the kernels is not what is expected.
    #[error("the kernels cannot be loaded: {detail}")]
    Kernels {
        /// What is wrong.
        detail: String,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] DeviceError),
}
