//! Compiles the kernels for the host, with the feature `emulate`.

fn main() {
    #[cfg(feature = "emulate")]
    {
        println!("cargo::rerun-if-changed=kernels");
        cc::Build::new()
            .file("kernels/emulated.c")
            .flag("-std=gnu11")
            .opt_level(2)
            .warnings(true)
            .extra_warnings(true)
            .warnings_into_errors(false)
            .compile("siltstone_emulated");
    }
}
