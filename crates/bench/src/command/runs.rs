//! Runs workloads one after the other on one store.
//!
//! Threading: one thread calls; each run starts threads of its own. Beside each run, a thread asks
//! whether a signal came, because a run reports no progress while it prepares or settles.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use siltstone_table::exec::ExecutorState;

use super::list::{Begin, List, Step, quoted};
use super::output::Output;
use super::place::{Place, size_of};
use super::progress::Shown;
use super::{CommandError, Program, Result, RunArgs};
use crate::engine::{Driver, NullDriver, SiltstoneDriver, SiltstoneWith, gpu};
use crate::record::{Context, Record, number};
use crate::run::store::{Fixture, known};
use crate::run::{Control, RunError, run};
use crate::settings::{Refusal, Settings, Workload};
use crate::topology::Standing;

/// How often the program is asked whether a signal came.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What all runs of a call share.
pub(super) struct Runner<'a> {
    pub program: &'a Program<'a>,
    pub driver: &'a dyn Driver,
    pub context: Context,
}

impl Runner<'_> {
    /// Carries out one run below `folder` and returns its record. `label` stands beside the bar.
    pub fn run(
        &self,
        folder: &Path,
        settings: &Settings,
        label: &str,
    ) -> std::result::Result<Record, RunError> {
        if (self.program.stopped)() {
            return Err(RunError::Interrupted);
        }
        if settings.gpu.is_used() {
            return self.run_with_gpu(folder, settings, label);
        }
        match settings.topology.is_plain() {
            true => self.run_here(folder, settings, label),
            false => self.run_apart(folder, settings, label),
        }
    }

    /// Carries out one run in this process, with a GPU that is opened for it and closed after it.
    fn run_with_gpu(
        &self,
        folder: &Path,
        settings: &Settings,
        label: &str,
    ) -> std::result::Result<Record, RunError> {
        if self.driver.name() != SiltstoneDriver.name() {
            let engine = self.driver.name();
            let why = format!("{engine} has no compaction on a GPU");
            return Err(RunError::NotRun(why));
        }
        let program = self.program;
        let executor = gpu::opened(program.gpus, &settings.gpu, program.stopped)?;
        let words = gpu::words(program.gpus, &*executor, &settings.gpu);
        let driver = SiltstoneWith::new(vec![executor.clone()], words);
        let mut record = self.run_on(&driver, folder, settings, label)?;
        record.stand_ins.extend(program.gpus.stand_in());
        let count = |side: &str| {
            let counter = record
                .engine_counters
                .get(&format!("{side}_compaction_count"));
            counter.copied().unwrap_or(0)
        };
        record
            .warnings
            .extend(idle_gpu(count("gpu"), count("host")));
        if let ExecutorState::Down(why) = executor.state() {
            let text = format!("The GPU was lost during the run: {why}.");
            record.warnings.push(text);
        }
        Ok(record)
    }

    /// Carries out one run in a process of its own, beside its device.
    fn run_apart(
        &self,
        folder: &Path,
        settings: &Settings,
        label: &str,
    ) -> std::result::Result<Record, RunError> {
        let refuse = |expected: &str| {
            RunError::Settings(Refusal {
                setting: "topology.files",
                found: settings.topology.files.to_string(),
                expected: expected.into(),
            })
        };
        if self.driver.name() != SiltstoneDriver.name() {
            return Err(refuse("only siltstone has a topology"));
        }
        if !self.driver.opens_elsewhere() {
            return Err(refuse(
                "such a run is a process of its own, which cannot use an executor of this one; \
                 leave --gpu out",
            ));
        }
        let Some(program) = &self.program.file else {
            return Err(refuse("this program cannot start itself again"));
        };
        let system = |during: &str| {
            let during = format!("{during} {}", folder.display());
            |error| RunError::System { during, error }
        };
        // The device is given the folder by its real path.
        let folder = std::fs::canonicalize(folder).map_err(system("find"))?;
        let mut standing = Standing::start(program, settings, &folder)?;
        let name = self.driver.name();
        let mut record = standing.run(name, &folder, settings, label, self.program.stopped)?;
        let context = &self.context;
        record.machine = context.machine.clone();
        record.command_line = context.command_line.clone();
        record.stand_ins.splice(..0, context.stand_ins.clone());
        Ok(record)
    }

    /// Carries out one run in this process.
    pub fn run_here(
        &self,
        folder: &Path,
        settings: &Settings,
        label: &str,
    ) -> std::result::Result<Record, RunError> {
        self.run_on(self.driver, folder, settings, label)
    }

    /// Carries out one run in this process on this engine.
    fn run_on(
        &self,
        driver: &dyn Driver,
        folder: &Path,
        settings: &Settings,
        label: &str,
    ) -> std::result::Result<Record, RunError> {
        let control = Control::default();
        let shown = Shown::new(label);
        let found = std::thread::scope(|scope| {
            // The sender is dropped at the end of the run, also if the run panics.
            let (_running, end) = mpsc::channel();
            scope.spawn(|| self.watch(&control, end));
            let show = |progress| shown.show(progress);
            run(driver, folder, settings, &control, &show)
        })?;
        Ok(Record::of(driver, settings, &found, &self.context))
    }

    /// Stops the run when a signal came. Returns when the sender of `end` is dropped.
    fn watch(&self, control: &Control, end: Receiver<()>) {
        while end.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
            if (self.program.stopped)() {
                control.stop.store(true, Ordering::Release);
            }
        }
    }

    /// Whether stores of the engine take space on disk.
    pub fn uses_disk(&self) -> bool {
        self.driver.name() != NullDriver.name()
    }

    /// What has to be said of the machine and the program before their figures are read.
    pub fn head(&self, output: &mut Output<'_>) -> Result<()> {
        let (machine, build) = (&self.context.machine, &self.context.build);
        let memory = number::bytes(machine.memory_bytes.map(|bytes| bytes as f64));
        let cores = machine.cores.map_or("-".into(), number::count);
        let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
        let mut facts = vec![format!("{cpu}, {cores} cores, {memory}")];
        if let Some(system) = &machine.file_system {
            facts.push(format!("stores on {system}"));
        }
        output.row("machine", &facts)?;
        if machine.file_system.as_deref() == Some("tmpfs") && self.uses_disk() {
            let text = "the folder lies in memory; --folder names one on a disk";
            output.row("note", &[text.into()])?;
        }
        if build.profile.as_deref() == Some("debug") {
            let text = "this program was built for debugging, and its figures mean nothing; \
                        build it with --release";
            output.row("note", &[text.into()])?;
        }
        Ok(())
    }
}

/// Runs the workloads that the arguments name, and writes what they found to `out`.
///
/// # Errors
/// See [`CommandError`]. What was found before is written.
pub fn bench(program: &Program<'_>, args: &RunArgs, out: &mut dyn Write) -> Result<()> {
    let driver = program.driver(args.output.engine.as_deref())?;
    let begin = match &args.folder {
        None => Begin::Fresh,
        Some(folder) => Begin::Given(known(driver, folder)),
    };
    let list = List::of(program, driver, args, &begin)?;
    let title = format!("Benchmark of {}", driver.name());
    let mut output = Output::new(&args.output, title, out)?;
    let place = Place::of(args.folder.as_deref(), args.keep)?;
    let runner = Runner {
        program,
        driver,
        context: Context::of_this_process(place.folder()),
    };
    check_room(&runner, &list, &place)?;
    runner.head(&mut output)?;
    for note in &list.notes {
        output.row("note", std::slice::from_ref(note))?;
    }
    let mut result = Ok(());
    for step in &list.steps {
        result = run_step(&runner, &place, step, &mut output);
        if result.is_err() {
            break;
        }
    }
    if !matches!(result, Err(CommandError::OutputClosed)) {
        output.summary()?;
        output.text("\n")?;
        output.finish()?;
    }
    result?;
    say_where(&runner, args, &place, &mut output)
}

/// Refuses runs whose store cannot fit on the disk.
fn check_room(runner: &Runner<'_>, list: &List, place: &Place) -> Result<()> {
    if !runner.uses_disk() {
        return Ok(());
    }
    let store = Fixture::folder_of(runner.driver, place.folder());
    let there = size_of(&store);
    // What is there is deleted by a fill, and otherwise it is a part of what is needed.
    place.check_room(list.disk_bytes(), there, "fewer --records")
}

fn run_step(
    runner: &Runner<'_>,
    place: &Place,
    step: &Step,
    output: &mut Output<'_>,
) -> Result<()> {
    let workload = step.settings.workload;
    let found = runner.run(place.folder(), &step.settings, workload.name());
    let record = found.map_err(|error| match error {
        RunError::Interrupted => interrupted(runner, place, workload),
        other => other.into(),
    })?;
    if step.is_asked {
        return output.record(record);
    }
    let fact = format!(
        "the store was filled with {workload} first: {} records in {}",
        number::count(record.operations),
        number::seconds(Some(record.until_idle_s))
    );
    output.row("note", &[fact])
}

/// What has to be said of a run with a GPU that did nothing.
fn idle_gpu(on_gpu: u64, on_host: u64) -> Option<String> {
    let text = match (on_gpu, on_host) {
        (1.., _) => return None,
        (0, 0) => "There was no compaction, so the figures say nothing about the GPU.".to_string(),
        (0, 1) => "The host ran the only compaction, so the figures are those of the host.".into(),
        (0, all) => format!(
            "The host ran all {all} compactions, so the figures are those of the host, and not of \
             the GPU."
        ),
    };
    Some(text)
}

/// The end of a call by a signal.
fn interrupted(runner: &Runner<'_>, place: &Place, workload: Workload) -> CommandError {
    let store = Fixture::folder_of(runner.driver, place.folder());
    let store = store.display();
    // A run that was stopped before its first write leaves the store as it was, too.
    let is_known = known(runner.driver, place.folder()).is_some();
    let what = match (place.is_kept(), is_known) {
        (false, _) => String::new(),
        (true, false) => format!(
            "; the store in {store} stays, but no later run reads it, because nobody knows what \
             was written; a fill makes a new one"
        ),
        (true, true) => format!("; the store in {store} is as it was"),
    };
    CommandError::Interrupted(format!("during `{workload}`{what}"))
}

/// Says where a store is that stays, and what can be done with it.
fn say_where(
    runner: &Runner<'_>,
    args: &RunArgs,
    place: &Place,
    output: &mut Output<'_>,
) -> Result<()> {
    if !place.is_kept() || !runner.uses_disk() {
        return Ok(());
    }
    let store = Fixture::folder_of(runner.driver, place.folder());
    if args.keep && output.is_json() {
        eprintln!("the store is kept in {}", store.display());
    }
    let word = |path: &Path| quoted(&path.to_string_lossy());
    output.row("store", &[format!("{} is kept", store.display())])?;
    if runner.driver.name() == "siltstone" {
        output.row("verify it", &[format!("silt check {}", word(&store))])?;
    }
    let keys = match output.records().last() {
        Some(record) if record.workload.starts_with("ycsb") => "ycsb-c",
        _ => "readrandom",
    };
    let command = runner.program.command;
    let read = format!("{command} {keys} --folder {}", word(place.folder()));
    output.row("read it", &[read])
}

#[cfg(test)]
mod tests {
    use super::idle_gpu;

    #[test]
    fn a_gpu_that_did_nothing_is_named() {
        assert_eq!(idle_gpu(1, 0), None);
        assert_eq!(idle_gpu(3, 9), None);
        for (on_host, said) in [
            (0, "There was no compaction"),
            (1, "The host ran the only compaction"),
            (7, "The host ran all 7 compactions"),
        ] {
            let found = idle_gpu(0, on_host).unwrap();
            assert!(found.starts_with(said), "{found}");
        }
    }
}
