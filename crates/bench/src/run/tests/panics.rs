//! Engines that panic.

use std::sync::mpsc;
use std::time::Duration;

use super::spy::{Habit, Spy};
use super::{Control, RunError, run, run_in, small};
use crate::settings::Workload;

/// A run that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

#[test]
fn a_thread_that_panics_ends_the_run_and_its_writer() {
    for habit in [Habit::PanicsInGet, Habit::PanicsInSession] {
        let folder = tempfile::tempdir().unwrap();
        run_in(&Spy::default(), folder.path(), &small(Workload::FillSeq));
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let spy = Spy::with(habit);
            let settings = small(Workload::ReadWhileWriting);
            let control = Control::default();
            let result = run(&spy, folder.path(), &settings, &control, &|_| {});
            // The test may have given up.
            let _ = sender.send(result.map(drop));
        });
        let result = ended.recv_timeout(HANGS);
        let result = result.unwrap_or_else(|_| panic!("{habit:?}: the run hangs"));
        assert!(
            matches!(result, Err(RunError::Panic)),
            "{habit:?}: {result:?}"
        );
    }
}
