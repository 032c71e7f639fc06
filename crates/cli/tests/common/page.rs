//! Reads a page of HTML as strictly as a test can: every tag is closed in order, every attribute is
//! quoted, and nothing from outside is referred to.

#![allow(dead_code)] // Each test file uses a part of it.

use std::collections::BTreeSet;

/// The contents of a page.
#[derive(Debug, Default)]
pub struct Page {
    /// Names of elements, in order, with their attributes.
    pub elements: Vec<(String, Vec<(String, String)>)>,
    /// All visible text, with entities decoded.
    pub text: String,
    /// The text within the element `script` of the type JSON.
    pub json: String,
}

/// Elements that have no end.
const VOID: [&str; 5] = ["meta", "link", "img", "br", "hr"];

fn decoded(text: &str) -> String {
    for (n, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(
            known.iter().any(|k| text[n..].starts_with(k)),
            "a bare & in {text:?}"
        );
    }
    assert!(!text.contains('>'), "a bare > in {text:?}");
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Splits `name="value"` pairs, all of which must be quoted.
fn attributes(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start();
        if text.is_empty() || text == "/" {
            return found;
        }
        let (name, rest) = text
            .split_once("=\"")
            .unwrap_or_else(|| panic!("no quoted value in {text:?}"));
        assert!(
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'),
            "an attribute's name: {name:?}"
        );
        let (value, rest) = rest
            .split_once('"')
            .unwrap_or_else(|| panic!("an open quote in {text:?}"));
        assert!(!value.contains('<'), "{value:?}");
        assert!(
            !found.iter().any(|(n, _)| n == name),
            "{name} twice in {text:?}"
        );
        found.push((name.to_string(), decoded(value)));
        text = rest;
    }
}

/// Reads a page. Panics if it is not well-formed or refers to anything outside of itself.
pub fn read(html: &str) -> Page {
    let mut page = Page::default();
    let mut open: Vec<String> = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some((text, after)) = rest.split_once('<') {
        page.text.push_str(&decoded(text));
        let (tag, after) = after.split_once('>').expect("a tag that ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(
                open.pop().as_deref(),
                Some(name),
                "after {} elements",
                page.elements.len()
            );
            continue;
        }
        let (name, attributes_text) = tag.split_once([' ', '/']).unwrap_or((tag, ""));
        let attributes = attributes(attributes_text);
        let empty = tag.ends_with('/') || VOID.contains(&name);
        page.elements.push((name.to_string(), attributes.clone()));
        if name == "script" || name == "style" {
            let (inside, after) = rest.split_once(&format!("</{name}>")).expect("its end");
            if attributes.iter().any(|(_, v)| v == "application/json") {
                page.json = inside.to_string();
            } else {
                for asked in [
                    "http:",
                    "https:",
                    "//cdn",
                    "@import",
                    "url(",
                    "fetch(",
                    "XMLHttp",
                    "innerHTML",
                ] {
                    assert!(!inside.contains(asked), "{asked} in {name}");
                }
            }
            rest = after;
        } else if !empty {
            open.push(name.to_string());
        }
    }
    assert_eq!(open, [""; 0], "never closed");
    page.check();
    page
}

impl Page {
    /// References lead to elements of the page, and pictures have descriptions.
    fn check(&self) {
        let mut ids = BTreeSet::new();
        let all = || {
            self.elements
                .iter()
                .flat_map(|(e, a)| a.iter().map(move |(n, v)| (e, n, v)))
        };
        for (_, _, id) in all().filter(|(_, name, _)| *name == "id") {
            assert!(ids.insert(id.clone()), "the id {id} is there twice");
        }
        for (element, name, value) in all() {
            match &name[..] {
                "href" | "src" => match value.strip_prefix('#') {
                    Some(id) => assert!(ids.contains(id), "{element} leads to #{id}"),
                    None => assert!(value.starts_with("data:"), "{element} asks for {value}"),
                },
                "aria-labelledby" | "aria-describedby" => {
                    value
                        .split(' ')
                        .for_each(|id| assert!(ids.contains(id), "{element}: {id}"));
                }
                "d" => {
                    let known = |c: char| c.is_ascii_digit() || "MLHVZhv. -".contains(c);
                    assert!(value.chars().all(known), "a path {value:?}");
                }
                "style" => assert!(!value.contains("NaN") && !value.contains("inf"), "{value}"),
                _ => assert!(!name.starts_with("on"), "{element} has {name}"),
            }
        }
        for (element, attributes) in &self.elements {
            let has = |name: &str| attributes.iter().any(|(n, v)| n == name && !v.is_empty());
            match &element[..] {
                "img" => assert!(has("alt"), "a picture without words"),
                "svg" => assert!(
                    has("aria-labelledby") || has("aria-label") || has("aria-hidden"),
                    "a plot without words"
                ),
                _ => {}
            }
        }
    }

    /// The number of elements with a name.
    pub fn count(&self, name: &str) -> usize {
        self.elements.iter().filter(|(n, _)| n == name).count()
    }

    /// Whether an element has this attribute with this value.
    pub fn has(&self, name: &str, value: &str) -> bool {
        let mut all = self.elements.iter().flat_map(|(_, a)| a);
        all.any(|(n, v)| n == name && v == value)
    }
}
