//! Compiles the kernels for the host, with the feature `emulate`. With `SILT_GPU_SANITIZE=address`
//! or `=thread` they are compiled with these checks of the compiler (`cargo xtask sanitize`).

fn main() {
    #[cfg(feature = "emulate")]
    emulate();
}

#[cfg(feature = "emulate")]
fn emulate() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=SILT_GPU_SANITIZE");
    let mut build = cc::Build::new();
    build
        .file("kernels/emulated.c")
        .flag("-std=gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true);
    if let Ok(checks) = std::env::var("SILT_GPU_SANITIZE") {
        let checks = match checks.as_str() {
            "thread" => {
                // The threads of a kernel run on several threads of the system.
                build.define("EMULATED_WORKERS", "4");
                "thread"
            }
            _ => "address,undefined",
        };
        let flag = format!("-fsanitize={checks}");
        build
            .flag(&flag)
            .flag("-fno-sanitize-recover=all")
            .flag("-g")
            .opt_level(1);
        // The test has to be started with the library in LD_PRELOAD.
        for library in match checks {
            "thread" => &["tsan"][..],
            _ => &["asan", "ubsan"],
        } {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
    build.compile("siltstone_emulated");
}
