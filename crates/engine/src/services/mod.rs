//! Operations on the parts below: create and drop, ingest, checkpoint, recovery, the memory budget.
//!
//! Nothing here knows tasks or handles.

pub(crate) mod budget;
pub(crate) mod checkpoint;
pub(crate) mod ddl;
pub(crate) mod ingest;
pub(crate) mod options_differ;
pub(crate) mod parts;
pub(crate) mod recovery;
pub(crate) mod seal;
pub(crate) mod settings;
pub(crate) mod table_builder;
