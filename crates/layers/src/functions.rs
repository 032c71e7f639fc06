//! Measures the length of functions.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use crate::sources::{Sources, only_tests};

/// The most lines of a function.
pub const LONGEST_FUNCTION: usize = 160;

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The file that contains it.
    pub file: String,
    /// Its name.
    pub name: String,
    /// The line of `fn`.
    pub line: usize,
    /// The number of lines from `fn` to the closing brace, including both.
    pub lines: usize,
}

/// Every function of the crate except tests, in the order of files and lines.
pub fn functions(sources: &Sources) -> Vec<Function> {
    let mut found = Vec::new();
    for file in &sources.files {
        let mut search = Search {
            file: &file.path,
            found: &mut found,
        };
        for item in &file.items {
            search.visit_item(item);
        }
    }
    found
}

struct Search<'a> {
    file: &'a str,
    found: &'a mut Vec<Function>,
}

impl Search<'_> {
    fn add(&mut self, signature: &Signature, body: &Block) {
        let line = signature.fn_token.span.start().line;
        let end = body.span().end().line;
        self.found.push(Function {
            file: self.file.to_string(),
            name: signature.ident.to_string(),
            line,
            lines: end + 1 - line,
        });
    }
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !function.attrs.iter().any(only_tests) {
            self.add(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
