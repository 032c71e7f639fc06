//! The kernels that a text of PTX has, and the sizes of their parameters.
//!
//! A launch refuses arguments of another length than the kernel's parameter has. The text is the
//! one place that names all kernels. It comes from `cargo xtask ptx`, not from a user.
//!
//! Threading: pure functions.

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The length of its one parameter.
    pub param_bytes: usize,
}

/// All kernels of the text, in its order.
///
/// # Errors
/// A kernel that has not exactly one parameter of a known size.
pub fn entries(ptx: &str) -> Result<Vec<Entry>, String> {
    let lines = ptx
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split(".entry ").skip(1).map(entry).collect()
}

/// The kernel whose name begins the text.
fn entry(text: &str) -> Result<Entry, String> {
    let (name, rest) = text.split_once('(').unwrap_or((text, ""));
    let (params, _) = rest.split_once(')').unwrap_or((rest, ""));
    let name = name.trim().to_string();
    let param_bytes = param_bytes(params).ok_or_else(|| {
        let params = params.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("kernel `{name}` should have one parameter, a structure, but has ({params})")
    })?;
    Ok(Entry { name, param_bytes })
}

/// The size of `.param .align 8 .b8 name[24]`.
fn param_bytes(params: &str) -> Option<usize> {
    let has_one = params.matches(".param").count() == 1;
    let (declared, size) = params.trim().strip_suffix(']')?.split_once('[')?;
    let is_bytes = declared.split_whitespace().any(|word| word == ".b8");
    (has_one && is_bytes).then(|| size.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_one_structure() {
        let ptx = "// .entry no(\n.version 8.4\n.target sm_80\n\
                   .visible .entry first(\n\t.param .align 8 .b8 first_param_0[24]\n)\n{\n}\n\
                   .visible .entry second(.param .align 4 .b8 p[4])\n.maxntid 256, 1, 1\n{\n}";
        let found = entries(ptx).unwrap();
        let found: Vec<(&str, usize)> = found
            .iter()
            .map(|entry| (entry.name.as_str(), entry.param_bytes))
            .collect();
        assert_eq!(found, [("first", 24), ("second", 4)]);
        assert_eq!(entries(".version 8.4"), Ok(Vec::new()));
        for params in [
            "",
            ".param .u64 p",
            ".param .b8 p[4], .param .b8 q[4]",
            ".param .b8 p[x]",
        ] {
            let wrong = entries(&format!(".entry k({params}) {{}}")).unwrap_err();
            assert!(wrong.contains("`k`") && wrong.contains(params), "{wrong}");
        }
    }
}
