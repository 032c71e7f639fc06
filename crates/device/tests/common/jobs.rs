//! Jobs for tests with a peer that may send anything.

use siltstone_device::wire::Request;
use siltstone_device::wire::job::{JobOrder, Place};
use siltstone_device::wire::request::NamesChange;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::job::outcome::{Counters, OutputTable};
use siltstone_table::job::{FormatOptions, Input, Job, OutputLimits, OutputPrefix};

/// A job that ends at once on a device, because a stream does not cross a link.
pub fn a_job() -> Job {
    Job::of_stream(
        1,
        Input::of_stream("memtable", 5..=9),
        OutputLimits::new(1 << 20, 4096, false),
        FormatOptions::default(),
        OutputPrefix::default(),
    )
}

/// The request that begins a job in the folder of the session, under the first lease.
pub fn begin(attempt: u64) -> Request {
    order(attempt, Place::Session)
}

/// The same request, for a shared folder.
pub fn begin_at(attempt: u64, path: &str) -> Request {
    order(attempt, Place::Shared { path: path.into() })
}

fn order(attempt: u64, place: Place) -> Request {
    let order = JobOrder {
        attempt,
        store: [0; 16],
        place,
        epoch: 1,
        max_parallel: 1,
        bytes_per_s: 0,
        silence_ms: 1000,
    };
    Request::Names {
        number: attempt,
        epoch: 1,
        change: NamesChange::BeginJob(order),
    }
}

/// A part of the job of `a_job` with one table of this name.
pub fn a_part(name: &str) -> Part {
    let keys = (b"a".to_vec(), b"b".to_vec());
    let table = OutputTable {
        name: name.into(),
        subjob: 0,
        raw_bytes: 100,
        file_bytes: 100,
        entries: 2,
        puts: 2,
        deletes: 0,
        fragments: 0,
        bounds: OutputTable::bounds_of(Some(&keys), None).expect("bounds of two keys"),
        keys: Some(keys),
        left_bound: Vec::new(),
        right_bound: None,
        min_seq: 5,
        max_seq: 9,
        digest: 1,
    };
    Part {
        subjob: 0,
        tables: vec![table],
        next: Point::End(Counters::default()),
    }
}
