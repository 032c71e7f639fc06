//! HTML that is balanced and escaped by construction.
//!
//! Invariants: an element is closed where its closure ends; text and attribute values are always
//! escaped; only what is written in this program's source ([`Html::source`]) goes in as it is.
//! Names of tags and attributes are literals.

use std::fmt::{self, Display, Write};

/// A page in the making.
#[derive(Debug, Default)]
pub struct Html {
    out: String,
}

/// An attribute: its name and its value.
pub type Attribute<'a> = (&'static str, &'a dyn Display);

/// Escapes what is written through it. Control characters that HTML forbids become U+FFFD, so that
/// nothing is lost unseen.
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
                c if c.is_control() => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

impl Html {
    /// Nothing yet.
    pub fn new() -> Html {
        Html::default()
    }

    /// Everything that was written.
    pub fn into_string(self) -> String {
        self.out
    }

    /// Source text as it is: style, script, and what needs no attributes.
    pub fn source(&mut self, text: &'static str) {
        self.out.push_str(text);
    }

    /// Text, escaped.
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

    /// An element with what `inside` writes into it.
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

    /// An element with text in it.
    pub fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        text: impl Display,
    ) {
        self.within(name, attributes, |h| h.text(text));
    }

    /// An element without an inside: of SVG, or one that HTML calls void.
    pub fn empty(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.begin(name, attributes);
        self.out.push_str("/>");
    }

    /// A break between lines of the source, for those who read it.
    pub fn line(&mut self) {
        self.out.push('\n');
    }

    /// JSON for scripts. `<` can stand only within its strings, where it is written as an escape:
    /// nothing in it ends the element.
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
