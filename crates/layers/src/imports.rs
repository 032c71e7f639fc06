//! Finds the imports of a crate: every path in every file is resolved to the file that it names.
//!
//! A path counts if it begins with `crate`, `self` or `super`, or with the name of a module that
//! the file declares. An imported name counts where it is imported, not where it is used.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

use crate::sources::{ModulePath, SourceFile, Sources, only_tests};

/// A path in a file that names something in another file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file that contains the path.
    pub from: String,
    /// The line of the path.
    pub line: usize,
    /// The file that it names.
    pub to: String,
    /// The path below the crate's root.
    pub path: String,
}

/// Every import of the crate, once each, in the order of files and lines. Those of the root are
/// left out: it declares modules and re-exports names.
pub fn imports(sources: &Sources) -> Vec<Import> {
    let exports: Vec<Exports> = sources
        .files
        .iter()
        .map(|file| exports_of(sources, file))
        .collect();
    let mut found = BTreeSet::new();
    for file in sources.files.iter().skip(1) {
        for named in paths_of(sources, file) {
            let mut to = vec![nearest(sources, &named.path).0];
            to.extend(defined_in(sources, &exports, &named.path, 0));
            for index in to {
                let target = &sources.files[index];
                if target.path != file.path {
                    found.insert(Import {
                        from: file.path.clone(),
                        line: named.line,
                        to: target.path.clone(),
                        path: named.path.join("::"),
                    });
                }
            }
        }
    }
    found.into_iter().collect()
}

/// The file of the longest module with which the path begins, and the number of segments of that.
fn nearest(sources: &Sources, path: &[String]) -> (usize, usize) {
    (0..=path.len())
        .rev()
        .find_map(|n| sources.file_of(&path[..n]).map(|file| (file, n)))
        .unwrap_or((0, 0))
}

/// A re-export of a module: a name, or everything (`*`), and the path that it stands for.
type Exports = BTreeMap<String, Vec<ModulePath>>;

fn exports_of(sources: &Sources, file: &SourceFile) -> Exports {
    let mut exports = Exports::new();
    for item in &file.items {
        let Item::Use(used) = item else { continue };
        if matches!(used.vis, Visibility::Inherited) {
            continue;
        }
        for leaf in leaves(&used.tree) {
            if let Some(path) = resolved(sources, &file.module, 0, &leaf.path) {
                exports.entry(leaf.name).or_default().push(path);
            }
        }
    }
    exports
}

/// The files through which re-exports lead to the definition of the path's first name after the
/// module.
fn defined_in(sources: &Sources, exports: &[Exports], path: &[String], depth: usize) -> Vec<usize> {
    let (file, taken) = nearest(sources, path);
    let Some(name) = path.get(taken) else {
        return vec![file];
    };
    let Some(to) = exports[file].get(name).filter(|_| depth < 8) else {
        return vec![file];
    };
    to.iter()
        .flat_map(|target| {
            let whole: ModulePath = target.iter().chain(&path[taken + 1..]).cloned().collect();
            defined_in(sources, exports, &whole, depth + 1)
        })
        .collect()
}

/// A path as it was found, relative to the crate's root.
struct Named {
    path: ModulePath,
    line: usize,
}

fn paths_of(sources: &Sources, file: &SourceFile) -> Vec<Named> {
    let mut search = Search {
        sources,
        module: file.module.clone(),
        within: 0,
        found: Vec::new(),
    };
    for item in &file.items {
        search.visit_item(item);
    }
    search.found
}

struct Search<'a> {
    sources: &'a Sources,
    module: ModulePath,
    /// The number of modules within the file that contain the path: for them `super` is this file.
    within: usize,
    found: Vec<Named>,
}

impl Search<'_> {
    fn name(&mut self, path: &[String], line: usize) {
        if let Some(path) = resolved(self.sources, &self.module, self.within, path) {
            self.found.push(Named { path, line });
        }
    }

    /// Collects the paths in the tokens of a macro call.
    fn tokens(&mut self, tokens: TokenStream) {
        let all: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < all.len() {
            if let TokenTree::Group(group) = &all[at] {
                self.tokens(group.stream());
            }
            let TokenTree::Ident(first) = &all[at] else {
                at += 1;
                continue;
            };
            let line = first.span().start().line;
            let mut path = vec![first.to_string()];
            at += 1;
            while is_colon(all.get(at))
                && is_colon(all.get(at + 1))
                && let Some(TokenTree::Ident(next)) = all.get(at + 2)
            {
                path.push(next.to_string());
                at += 3;
            }
            if path.len() > 1 {
                self.name(&path, line);
            }
        }
    }
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':')
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_use(&mut self, used: &'ast ItemUse) {
        if used.attrs.iter().any(only_tests) {
            return;
        }
        for leaf in leaves(&used.tree) {
            self.name(&leaf.path, leaf.line);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.content.is_some() {
            self.within += 1;
            visit::visit_item_mod(self, module);
            self.within -= 1;
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if names.len() > 1 {
            let line = path.segments[0].ident.span().start().line;
            self.name(&names, line);
        }
        visit::visit_path(self, path);
    }

    /// `pub(in crate::a)` names a module without using it.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(only_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        visit::visit_macro(self, called);
        self.tokens(called.tokens.clone());
    }
}

/// The path relative to the crate's root, if it names something in this crate.
fn resolved(
    sources: &Sources,
    module: &[String],
    within: usize,
    path: &[String],
) -> Option<ModulePath> {
    let first = path.first()?.as_str();
    let start = match first {
        // `$crate` in a macro is read as `crate`.
        "crate" => return Some(path[1..].to_vec()),
        "self" if within == 0 => return Some([module, &path[1..]].concat()),
        "self" => return None,
        "super" => path.iter().take_while(|p| *p == "super").count(),
        _ => {
            let child = [module, &path[..1]].concat();
            return sources
                .file_of(&child)
                .filter(|_| within == 0)
                .map(|_| [module, path].concat());
        }
    };
    let up = start.checked_sub(within)?;
    let base = module.len().checked_sub(up)?;
    Some([&module[..base], &path[start..]].concat())
}

/// One name that a `use` imports.
struct Leaf {
    path: ModulePath,
    /// The name in the importing file; `*` for everything.
    name: String,
    line: usize,
}

fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut found = Vec::new();
    walk(tree, &mut Vec::new(), &mut found);
    found
}

fn walk(tree: &UseTree, before: &mut ModulePath, found: &mut Vec<Leaf>) {
    let leaf = |ident: &syn::Ident, name: String| {
        let mut path = before.clone();
        // `use a::b::{self}` names `a::b`.
        if ident != "self" || path.is_empty() {
            path.push(ident.to_string());
        }
        let name = match name.as_str() {
            "self" => path.last().cloned().unwrap_or_default(),
            _ => name,
        };
        let line = ident.span().start().line;
        Leaf { path, name, line }
    };
    match tree {
        UseTree::Path(part) => {
            before.push(part.ident.to_string());
            walk(&part.tree, before, found);
            before.pop();
        }
        UseTree::Name(part) => found.push(leaf(&part.ident, part.ident.to_string())),
        UseTree::Rename(part) => found.push(leaf(&part.ident, part.rename.to_string())),
        UseTree::Glob(part) => found.push(Leaf {
            path: before.clone(),
            name: "*".to_string(),
            line: part.star_token.spans[0].start().line,
        }),
        UseTree::Group(group) => {
            for part in &group.items {
                walk(part, before, found);
            }
        }
    }
}
