//! HTML that is balanced and escaped by construction.
//!
//! It is well-formed XML too, so that a strict parser can check it.
//!
//! Invariants: an element is closed where its closure ends; text and attribute values are always
//! escaped; only literals of this program ([`Html::source`]) are written without escapes. Names of
//! tags and attributes are literals.
//!
//! Threading: plain data.

use std::fmt::{self, Display, Write};

/// An unfinished page.
#[derive(Debug, Default)]
pub struct Html {
    out: String,
}

/// An attribute: its name and its value.
pub type Attribute<'a> = (&'static str, &'a dyn Display);

/// Escapes the text that is written to it. Control characters that HTML forbids, and what XML
/// forbids, become U+FFFD, so that nothing is lost silently.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(c),
                '\u{fffe}' | '\u{ffff}' => self.0.push('\u{fffd}'),
                c if c.is_control() => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

impl Html {
    /// An empty page.
    pub fn new() -> Html {
        Html::default()
    }

    /// The text of the page.
    pub fn into_string(self) -> String {
        self.out
    }

    /// Writes literal source text: style, script, and elements without attributes.
    pub fn source(&mut self, text: &'static str) {
        self.out.push_str(text);
    }

    /// Writes escaped text.
    pub fn text(&mut self, text: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(Escaped(&mut self.out), "{text}");
    }

    fn begin(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.out.push('<');
        self.out.push_str(name);
        for (attribute, value) in attributes {
            self.out.push(' ');
            self.out.push_str(attribute);
            self.out.push_str("=\"");
            let _ = write!(Escaped(&mut self.out), "{value}");
            self.out.push('"');
        }
    }

    /// Writes an element with the contents that `inside` writes.
    pub fn within(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        inside: impl FnOnce(&mut Html),
    ) {
        self.begin(name, attributes);
        self.out.push('>');
        inside(self);
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }

    /// Writes an element with text in it.
    pub fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        text: impl Display,
    ) {
        self.within(name, attributes, |h| h.text(text));
    }

    /// Writes an element without contents: of SVG, or a void element of HTML.
    pub fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.out.push_str("/>");
    }

    /// Writes a line break into the source, for readers of the source.
    pub fn line(&mut self) {
        self.out.push('\n');
    }

    /// Writes JSON for scripts. `<` can occur only within strings, where it is written as an
    /// escape, so nothing in the JSON ends the element.
    pub fn json(&mut self, id: &'static str, json: &str) {
        self.begin("script", &[("type", &"application/json"), ("id", &id)]);
        self.out.push('>');
        self.out.push_str(&json.replace('<', "\\u003c"));
        self.out.push_str("</script>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_cannot_leave_its_place() {
        let mut h = Html::new();
        let hostile = "</p><script>alert('\"&\0')</script>";
        h.within("p", &[("title", &hostile)], |h| h.text(hostile));
        let escaped = "&lt;/p&gt;&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}&#39;)&lt;/script&gt;";
        assert_eq!(
            h.into_string(),
            format!("<p title=\"{escaped}\">{escaped}</p>")
        );
        let mut h = Html::new();
        h.json("x", "{\"a\":\"</script><!--\"}");
        assert_eq!(
            h.into_string(),
            "<script type=\"application/json\" \
            id=\"x\">{\"a\":\"\\u003c/script>\\u003c!--\"}</script>"
        );
    }
}
