//! The access list: which hosts may use which folders, by the names in their certificates.
//!
//! ```text
//! # a name, a colon, and what it may use
//! wren: birds            the folder `birds`
//! robin: nests-*  eggs   folders that begin with `nests-`, and the folder `eggs`
//! owl: *  /srv/shared    every folder, and the shared folder with everything below it
//! crow:                  no folder: this host may only send tables
//! ```
//!
//! Invariants: a peer that showed a certificate without a name, or with a name that is not listed,
//! may use nothing. A line that cannot be understood is refused with its number, and then nothing
//! of the text is used.
//!
//! Threading: plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use siltstone_storage::name::is_object_name;

use crate::wire::hello::FolderWanted;

/// Something that a name may use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Folder(String),
    Prefix(String),
    Shared(PathBuf),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    names: BTreeMap<String, Vec<Rule>>,
}

/// Why an access list cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessError {
    /// The number of the line, counted from 1. `None` if the text as a whole cannot be used.
    pub line: Option<usize>,
    /// What is wrong, and what was expected.
    pub reason: String,
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for AccessError {}

/// The peer at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Peer {
    /// The hash of the peer's certificate. `None` if it showed none.
    pub(super) certificate: Option<[u8; 32]>,
    /// The name in the certificate.
    pub(super) name: Option<String>,
    /// Whether the peer is a process of this machine.
    pub(super) is_local: bool,
}

/// Whether a path can be compared by its components: it is absolute and contains no `..`.
pub(super) fn is_plain_path(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(is_plain)
}

impl Rule {
    fn parse(word: &str) -> Result<Rule, String> {
        if word.starts_with('/') {
            return match is_plain_path(Path::new(word)) {
                true => Ok(Rule::Shared(word.into())),
                false => Err(format!("the path `{word}` must not have `..` in it")),
            };
        }
        let (name, is_prefix) = match word.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (word, false),
        };
        match name.is_empty() && is_prefix || is_object_name(name) {
            true if is_prefix => Ok(Rule::Prefix(name.into())),
            true => Ok(Rule::Folder(name.into())),
            false => Err(format!(
                "expected the name of a folder, the beginning of one with a `*` behind it, or the \
                 absolute path of a shared folder, found `{}`",
                word.escape_debug()
            )),
        }
    }
}

impl Access {
    /// Parses an access list.
    ///
    /// # Errors
    /// [`AccessError`] for the first line that is malformed, and for a list without names.
    pub fn parse(text: &str) -> Result<Access, AccessError> {
        let mut names = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason: String| AccessError {
                line: Some(at + 1),
                reason,
            };
            // The name in a certificate and the path of a shared folder may have colons, and the
            // name of a folder has none. So the last colon before the first path counts.
            let is_path = |at: &usize| line[..*at].ends_with(char::is_whitespace);
            let paths_at = line.match_indices('/').map(|(at, _)| at).find(is_path);
            let colon = line[..paths_at.unwrap_or(line.len())].rfind(':');
            let split = colon.map(|at| (line[..at].trim(), &line[at + 1..]));
            let Some((name, rest)) = split.filter(|(name, _)| !name.is_empty()) else {
                return Err(wrong(format!(
                    "expected `NAME: FOLDER FOLDER...` with the name of a certificate, found `{}`",
                    line.escape_debug()
                )));
            };
            // The name of a certificate may have `://` in it, and no `:/`.
            let is_path = |(at, _): (usize, &str)| !name[at + 2..].starts_with('/');
            if name.match_indices(":/").any(is_path) {
                return Err(wrong(format!(
                    "put a space between the colon and the path in `{}`",
                    line.escape_debug()
                )));
            }
            let rules = rest.split_whitespace().map(Rule::parse);
            let rules = rules
                .collect::<Result<Vec<Rule>, String>>()
                .map_err(wrong)?;
            if names.insert(name.to_string(), rules).is_some() {
                return Err(wrong(format!(
                    "the name `{name}` is in an earlier line, too"
                )));
            }
        }
        if names.is_empty() {
            let reason = "it lists no name, so no host could use the device".to_string();
            return Err(AccessError { line: None, reason });
        }
        Ok(Access { names })
    }

    fn rules(&self, peer: &Peer) -> Result<Option<&[Rule]>, String> {
        if peer.certificate.is_none() {
            return match peer.is_local {
                true => Ok(None),
                false => Err("the device serves only hosts with a certificate".into()),
            };
        }
        let Some(name) = &peer.name else {
            return Err("the host's certificate has no name".into());
        };
        let found = self.names.get(name);
        found.map(|rules| Some(&rules[..])).ok_or_else(|| {
            format!(
                "the name `{name}` of the host's certificate is not in the device's access list"
            )
        })
    }

    fn check(&self, peer: &Peer, what: &str, allows: impl Fn(&Rule) -> bool) -> Result<(), String> {
        match self.rules(peer)? {
            Some(rules) if !rules.iter().any(allows) => Err(format!(
                "the device's access list does not let `{}` use {what}",
                peer.name.as_deref().unwrap_or_default()
            )),
            _ => Ok(()),
        }
    }

    /// Whether a peer may have a session on this folder. Every listed peer may have a session
    /// without a folder, and a session for the tables that it sends.
    pub(super) fn check_folder(&self, peer: &Peer, folder: &FolderWanted) -> Result<(), String> {
        let FolderWanted::Named { name, .. } = folder else {
            return self.rules(peer).map(drop);
        };
        self.check(peer, &format!("the folder `{name}`"), |rule| match rule {
            Rule::Folder(folder) => folder == name,
            Rule::Prefix(prefix) => name.starts_with(prefix.as_str()),
            Rule::Shared(_) => false,
        })
    }

    /// Whether a peer may have jobs run in this shared folder of the machine.
    pub(super) fn check_shared(&self, peer: &Peer, path: &Path) -> Result<(), String> {
        let what = format!("the shared folder {}", path.display());
        self.check(peer, &what, |rule| match rule {
            Rule::Shared(shared) => path.starts_with(shared),
            Rule::Folder(_) | Rule::Prefix(_) => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: Option<&str>) -> Peer {
        Peer {
            certificate: Some([7; 32]),
            name: name.map(str::to_string),
            is_local: true,
        }
    }

    fn folder(name: &str) -> FolderWanted {
        FolderWanted::Named {
            name: name.into(),
            create: true,
        }
    }

    #[test]
    fn names_use_what_their_line_has() {
        let text = "# hosts\n\n wren: birds\nrobin:nests-*  eggs\t/srv/shared\nowl: *\ncrow:\n\
                    a host: with a colon: birds\nspiffe://farm/jay: a /srv/c:d\n";
        let access = Access::parse(text).unwrap();
        let may = |name: &str, wanted: &str| {
            access
                .check_folder(&named(Some(name)), &folder(wanted))
                .is_ok()
        };
        assert!(may("wren", "birds") && !may("wren", "birds2") && !may("wren", "bird"));
        assert!(may("robin", "nests-1") && may("robin", "nests-") && may("robin", "eggs"));
        assert!(!may("robin", "nests") && !may("robin", "birds"));
        assert!(may("owl", "birds") && may("owl", "anything"));
        assert!(!may("crow", "birds") && !may("Wren", "birds"));
        assert!(may("a host: with a colon", "birds") && may("spiffe://farm/jay", "a"));
        for wanted in [FolderWanted::None, FolderWanted::Scratch] {
            access.check_folder(&named(Some("crow")), &wanted).unwrap();
            let said = access
                .check_folder(&named(Some("jay")), &wanted)
                .unwrap_err();
            assert!(said.contains("`jay`"), "{said}");
            assert!(access.check_folder(&named(None), &wanted).is_err());
        }
        let shares = |name: &str, path: &str| {
            let peer = named(Some(name));
            access.check_shared(&peer, Path::new(path)).is_ok()
        };
        assert!(shares("robin", "/srv/shared") && shares("robin", "/srv/shared/a/b"));
        assert!(shares("spiffe://farm/jay", "/srv/c:d"));
        assert!(!shares("robin", "/srv/sharedx") && !shares("owl", "/srv/shared"));
        // A peer that showed no certificate is a process of this machine that may use the socket,
        // or it is not allowed anything.
        let mut peer = Peer {
            is_local: true,
            ..Peer::default()
        };
        access.check_folder(&peer, &folder("birds")).unwrap();
        peer.is_local = false;
        assert!(access.check_folder(&peer, &folder("birds")).is_err());
    }

    #[test]
    fn what_is_malformed_is_named_with_its_line() {
        for (text, line, said) in [
            ("wren birds", Some(1), "expected `NAME: FOLDER"),
            ("\n# x\n: birds", Some(3), "expected `NAME: FOLDER"),
            ("wren: birds\nowl: ../x", Some(2), "`../x`"),
            ("wren: .device", Some(1), "`.device`"),
            ("wren: a*b", Some(1), "`a*b`"),
            ("wren: a/b", Some(1), "`a/b`"),
            ("wren: /srv/../etc", Some(1), "`..`"),
            ("wren: a\nowl: b\nwren: c", Some(3), "earlier line"),
            ("wren:/srv/a:b", Some(1), "a space between"),
            ("# nothing\n", None, "no name"),
        ] {
            let error = Access::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            let shown = error.to_string();
            assert!(shown.contains(said) && !shown.contains('\n'), "{shown}");
        }
    }
}
