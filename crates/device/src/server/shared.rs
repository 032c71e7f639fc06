//! The folders of this machine that a server shares with hosts, which name them by their paths.
//!
//! Invariants: a host reaches only the folders of the option `shared` and what is below them. Its
//! path cannot lead out of them with `..`, nor through a symbolic link.
//!
//! Threading: shared.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone_storage::{Result, Storage, StorageError, StorageErrorKind};
use xxhash_rust::xxh3::Xxh3;

use super::Inner;
use super::access::is_plain_path;
use super::session::SessionState;
use crate::wire::Answer;

/// The maximum length of an object that a proof can be made of, in bytes. Hosts make objects of 16
/// bytes.
const PROOF_MAX: u64 = 4096;

/// The proof that somebody can read the bytes of an object.
pub(crate) fn proof_of(bytes: &[u8], salt: &[u8; 16]) -> [u8; 16] {
    let mut hash = Xxh3::new();
    hash.update(salt);
    hash.update(bytes);
    hash.digest128().to_le_bytes()
}

/// The error of a shared folder, with advice if the system does not let the device use it.
fn with_user(mut error: StorageError) -> StorageError {
    if error.kind == StorageErrorKind::PermissionDenied {
        error
            .detail
            .push_str("; start it as a user who can read and write the folder");
    }
    error
}

impl Inner {
    /// A folder of this machine that the device may share with this session's host.
    pub(super) fn shared_folder(
        &self,
        session: &SessionState,
        path: &str,
    ) -> Result<Arc<dyn Storage>> {
        let denied = |detail: String| {
            let kind = StorageErrorKind::PermissionDenied;
            StorageError::new(kind, "open", path, detail)
        };
        let wanted = Path::new(path);
        let is_below = |shared: &PathBuf| wanted.starts_with(shared);
        let is_shared = self.options.shared.iter().any(|shared| shared == wanted);
        // A path with `..` in it could lead out of the folder with which it begins.
        let is_plain = is_plain_path(wanted) || is_shared;
        if !is_plain || !self.options.shared.iter().any(is_below) {
            let detail = "the device does not share this folder; start it with --share FOLDER";
            return Err(denied(detail.into()));
        }
        if let Some(access) = &self.options.access {
            access.check_shared(&session.peer, wanted).map_err(denied)?;
        }
        let opened = self.folders.open_shared(path);
        let (storage, real_path) = opened.map_err(with_user)?;
        // A symbolic link could lead out of it too, and a host that can write there can create one
        // at any time. So the path of the folder that was opened is compared.
        if !is_shared && real_path != wanted {
            let detail = "the path has a symbolic link in it on the device, and folders that are \
                          shared are named by their real paths";
            return Err(denied(detail.into()));
        }
        Ok(storage)
    }

    /// Finds an object in a shared folder, or in a folder below one, and proves that its bytes can
    /// be read.
    pub(super) fn prove_folder(
        &self,
        session: &SessionState,
        path: &str,
        name: &str,
        salt: &[u8; 16],
    ) -> Result<Answer> {
        let folder = self.shared_folder(session, path)?;
        let file = folder.open(name).map_err(with_user)?;
        if file.len() > PROOF_MAX {
            let detail = format!("a proof reads {PROOF_MAX} bytes at most");
            let kind = StorageErrorKind::InvalidInput;
            return Err(StorageError::new(kind, "read", name, detail));
        }
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(0, &mut bytes)?;
        Ok(Answer::Proof(proof_of(&bytes, salt)))
    }
}
