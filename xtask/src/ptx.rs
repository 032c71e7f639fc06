//! `cargo xtask ptx`: compiles the kernels of `crates/gpu` to PTX, which is checked in.
//!
//! NVRTC and ptxas come from wheels of fixed versions, in a virtual environment of Python. They are
//! needed when kernels change, and never to build or to run siltstone. The work is done by
//! `xtask/ptx.py`, because the wheels are made to be used from Python.

use crate::steps::Step;

/// The virtual environment, below the root.
const VENV: &str = "target/ptx-venv";

/// The kernels, below the root.
const KERNELS: &str = "crates/gpu/kernels";

/// Those of CUDA 12.4, so that drivers from version 550 on can load the PTX; and the hash.
const WHEELS: [&str; 3] = [
    "nvidia-cuda-nvrtc-cu12==12.4.127",
    "nvidia-cuda-nvcc-cu12==12.4.131",
    "xxhash==3.5.0",
];

/// The processes to start. The first two do little if all is there already.
pub(crate) fn steps() -> Vec<Step> {
    let wheels = WHEELS.join(" ");
    vec![
        Step::new(&format!("python3 -m venv {VENV}")),
        Step::new(&format!(
            "{VENV}/bin/python -m pip install --quiet --disable-pip-version-check {wheels}"
        )),
        Step::new(&format!("{VENV}/bin/python xtask/ptx.py {KERNELS}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_have_fixed_versions() {
        let steps: Vec<String> = steps().iter().map(Step::to_string).collect();
        assert!(
            steps[1].contains(" nvidia-cuda-nvrtc-cu12==12.4.127 "),
            "{steps:?}"
        );
        assert!(WHEELS.iter().all(|wheel| wheel.contains("==")));
        let root = crate::root();
        assert!(root.join("xtask/ptx.py").is_file() && root.join(KERNELS).is_dir());
    }
}
