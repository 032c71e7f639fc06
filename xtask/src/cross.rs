//! `cargo xtask cross`: checks that everything compiles for the other architecture.
//!
//! The project's own code is Rust, but zstd and the cryptography of TLS have C and assembly, which
//! their build scripts compile also for `cargo check`. So two things are needed besides cargo: the
//! target's standard library, and a C compiler for it. Without the compiler, the crates without C
//! are still checked. What is missing is said first and last, and makes the command fail, so that a
//! part of the check is never mistaken for all of it.

use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::steps::Step;

/// The other architecture.
const FOREIGN: Foreign = if cfg!(target_arch = "aarch64") {
    Foreign {
        target: "x86_64-unknown-linux-gnu",
        compiler: "x86_64-linux-gnu-gcc",
        package: "gcc-x86-64-linux-gnu",
        variable: "CC_x86_64_unknown_linux_gnu",
    }
} else {
    Foreign {
        target: "aarch64-unknown-linux-gnu",
        compiler: "aarch64-linux-gnu-gcc",
        package: "gcc-aarch64-linux-gnu",
        variable: "CC_aarch64_unknown_linux_gnu",
    }
};

/// The crates without C in their dependencies.
const WITHOUT_C: &str = "-p siltstone-storage -p siltstone-plasma";

/// A target, and what compiles C for it.
struct Foreign {
    target: &'static str,
    /// The program, and the package of Debian and its kin that has it.
    compiler: &'static str,
    package: &'static str,
    /// The variable that names another compiler to build scripts.
    variable: &'static str,
}

/// What this machine has for the target.
#[derive(Clone, Debug)]
struct Has {
    std: bool,
    /// The C compiler.
    compiler: Option<String>,
}

/// The processes to start, and what is missing.
fn plan(foreign: &Foreign, has: &Has) -> (Vec<Step>, Vec<String>) {
    let mut missing = Vec::new();
    if !has.std {
        missing.push(format!(
            "the standard library of {}: rustup target add {0}",
            foreign.target
        ));
    }
    if has.compiler.is_none() {
        missing.push(format!(
            "a C compiler for {}: install {} (apt-get install {}, or the \
             like), or name one in {}; only crates without C can be checked",
            foreign.target, foreign.compiler, foreign.package, foreign.variable
        ));
    }
    let check = |what: &str| {
        let target = foreign.target;
        Step::new(&format!(
            "cargo check --target {target} {what} --lib --bins"
        ))
    };
    let steps = match (has.std, &has.compiler) {
        (false, _) => Vec::new(),
        (true, None) => vec![check(WITHOUT_C)],
        (true, Some(compiler)) => {
            vec![check("--workspace").with(foreign.variable, compiler)]
        }
    };
    (steps, missing)
}

/// Whether a program can be started.
fn starts(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").output();
    asked.is_ok_and(|output| output.status.success())
}

fn look() -> Has {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    });
    let lib = Path::new(&sysroot).join("lib/rustlib").join(FOREIGN.target);
    let named = std::env::var(FOREIGN.variable).ok();
    let compiler = named.or_else(|| Some(FOREIGN.compiler.to_string()));
    Has {
        std: lib.join("lib").is_dir(),
        compiler: compiler.filter(|program| starts(program)),
    }
}

/// Checks the workspace for the other architecture.
pub(crate) fn cross(root: &Path) -> Result<(), Failure> {
    let (steps, missing) = plan(&FOREIGN, &look());
    for what in &missing {
        eprintln!("missing: {what}");
    }
    steps.iter().try_for_each(|step| crate::run(step, root))?;
    if missing.is_empty() {
        return Ok(());
    }
    let checked = match steps.is_empty() {
        true => "nothing was checked".to_string(),
        false => format!("only a part was checked ({WITHOUT_C})"),
    };
    Err(Failure {
        message: format!("{checked}; missing: {}", missing.join("; ")),
        code: 3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_the_rest_is_checked() {
        let of = |std, compiler: Option<&str>| {
            let compiler = compiler.map(String::from);
            let (steps, missing) = plan(&FOREIGN, &Has { std, compiler });
            let steps: Vec<String> = steps.iter().map(Step::to_string).collect();
            (steps, missing)
        };
        let (steps, missing) = of(true, Some("cc"));
        let (target, variable) = (FOREIGN.target, FOREIGN.variable);
        let check = format!("cargo check --target {target}");
        assert_eq!(
            steps,
            [format!("{variable}=cc {check} --workspace --lib --bins")]
        );
        assert!(missing.is_empty(), "{missing:?}");
        let (steps, missing) = of(true, None);
        assert_eq!(steps, [format!("{check} {WITHOUT_C} --lib --bins")]);
        assert!(
            missing.len() == 1 && missing[0].contains(FOREIGN.package),
            "{missing:?}"
        );
        let (steps, missing) = of(false, None);
        assert!(steps.is_empty() && missing.len() == 2);
        assert!(missing[0].contains("rustup target add"), "{missing:?}");
        assert_eq!(of(false, Some("cc")).1.len(), 1);
    }
}
