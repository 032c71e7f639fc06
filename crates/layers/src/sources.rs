//! The parsed files of a crate, each with the path of its module.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, Meta};

/// The path of a module relative to the crate's root: `["log", "format"]`.
pub type ModulePath = Vec<String>;

/// One file of a crate.
pub struct SourceFile {
    /// The path of its module.
    pub module: ModulePath,
    /// Its path relative to the folder of the crate's root file, with `/` between folders.
    pub path: String,
    /// Its items, except those that only tests have.
    pub items: Vec<Item>,
    /// Its text.
    pub text: String,
}

/// The files of a crate, except tests.
pub struct Sources {
    /// All files, the root first.
    pub files: Vec<SourceFile>,
    by_module: BTreeMap<ModulePath, usize>,
}

impl Sources {
    /// Reads the crate with this root file (`lib.rs` or `main.rs`).
    ///
    /// # Errors
    /// A sentence that names the file that could not be read or parsed.
    pub fn read(root: &Path) -> Result<Self, String> {
        let folder = root.parent().unwrap_or(Path::new("."));
        let mut sources = Self {
            files: Vec::new(),
            by_module: BTreeMap::new(),
        };
        sources.add(folder, root, Vec::new(), folder.to_path_buf())?;
        Ok(sources)
    }

    /// The file of the module, if it has a file of its own.
    pub fn file_of(&self, module: &[String]) -> Option<usize> {
        self.by_module.get(module).copied()
    }

    /// Adds a file and the files of the modules that it declares, which are in the folder `below`.
    fn add(
        &mut self,
        folder: &Path,
        path: &Path,
        module: ModulePath,
        below: PathBuf,
    ) -> Result<(), String> {
        let text =
            fs::read_to_string(path).map_err(|e| format!("{}: not read: {e}", path.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| {
            let at = e.span().start();
            format!("{}:{}: not parsed: {e}", path.display(), at.line)
        })?;
        let items = without_tests(parsed.items);
        let mut children = Vec::new();
        for item in &items {
            let Item::Mod(declared) = item else { continue };
            if declared.content.is_some() {
                continue;
            }
            let name = declared.ident.to_string();
            let file = match path_attribute(&declared.attrs) {
                Some(given) => path.parent().unwrap_or(folder).join(given),
                None => {
                    let flat = below.join(format!("{name}.rs"));
                    match flat.exists() {
                        true => flat,
                        false => below.join(&name).join("mod.rs"),
                    }
                }
            };
            children.push((name, file));
        }
        let shown = path.strip_prefix(folder).unwrap_or(path);
        self.by_module.insert(module.clone(), self.files.len());
        self.files.push(SourceFile {
            module: module.clone(),
            path: shown.to_string_lossy().replace('\\', "/"),
            items,
            text,
        });
        for (name, file) in children {
            let in_own_folder = file.file_name().is_some_and(|n| n == "mod.rs");
            let next = match in_own_folder {
                true => file.parent().unwrap_or(folder).to_path_buf(),
                false => file.with_extension(""),
            };
            let mut module = module.clone();
            module.push(name);
            self.add(folder, &file, module, next)?;
        }
        Ok(())
    }
}

/// The items that a build without tests has, including those in modules within the file.
fn without_tests(items: Vec<Item>) -> Vec<Item> {
    let mut kept = Vec::new();
    for mut item in items {
        if attributes(&item).iter().any(only_tests) {
            continue;
        }
        if let Item::Mod(inner) = &mut item
            && let Some((_, content)) = &mut inner.content
        {
            *content = without_tests(std::mem::take(content));
        }
        kept.push(item);
    }
    kept
}

/// Whether the attribute is a `#[cfg(..)]` of something that only tests have.
pub(crate) fn only_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else {
        return false;
    };
    let words = list.tokens.to_string();
    let positive = !words.contains("not");
    list.path.is_ident("cfg")
        && positive
        && words
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| word == "test" || word == "doctest")
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let syn::Expr::Lit(value) = &pair.value else {
            return None;
        };
        match &value.lit {
            syn::Lit::Str(text) if pair.path.is_ident("path") => Some(text.value()),
            _ => None,
        }
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(x) => &x.attrs,
        Item::Enum(x) => &x.attrs,
        Item::Fn(x) => &x.attrs,
        Item::Impl(x) => &x.attrs,
        Item::Macro(x) => &x.attrs,
        Item::Mod(x) => &x.attrs,
        Item::Static(x) => &x.attrs,
        Item::Struct(x) => &x.attrs,
        Item::Trait(x) => &x.attrs,
        Item::Type(x) => &x.attrs,
        Item::Use(x) => &x.attrs,
        _ => &[],
    }
}
