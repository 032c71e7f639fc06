//! Continues a comparison that an earlier call began, from its file of records.
//!
//! A comparison of many rounds takes hours. If it was interrupted or ran out of time, it need not
//! begin again. More rounds can also be added to a finished comparison.
//!
//! Invariants: only records of this build are taken over, because figures of different builds do
//! not belong together, and only records of the same experiments at the same scales. Runs that
//! failed are tried again, and until then their failures stay.
//!
//! Threading: pure functions.

use super::archive::{Archive, Manifest, Planned};
use super::rounds::Piece;
use crate::measure::machine::Build;

/// Takes over the records of an earlier call.
///
/// # Errors
/// If the earlier call does not match this one: a sentence that says why.
pub fn take_over(
    pieces: &mut [Piece],
    archive: &Archive,
    (name, is_quick): (&str, bool),
    own: &Build,
) -> Result<(), String> {
    let Manifest {
        name: found,
        is_quick: was_quick,
        experiments,
        ..
    } = &archive.manifest;
    if found != name || *was_quick != is_quick {
        return Err(format!(
            "it has the records of `{found}`{}, and this call is for `{name}`{}",
            if *was_quick { " --quick" } else { "" },
            if is_quick { " --quick" } else { "" },
        ));
    }
    for line in &archive.lines {
        let Some(record) = &line.record else {
            continue;
        };
        let of = |build: &Build| (build.commit.clone(), build.profile.clone());
        if of(&record.build) != of(own) || own.is_modified == Some(true) {
            return Err(format!(
                "it has figures of commit {}, and this program was built from {}{}; figures of \
                 different builds do not belong together",
                record.build.commit.as_deref().unwrap_or("unknown"),
                own.commit.as_deref().unwrap_or("unknown"),
                match own.is_modified {
                    Some(true) => " with changes",
                    _ => "",
                },
            ));
        }
    }
    let same = |planned: &Planned, piece: &Piece| {
        planned.name == piece.experiment.name && planned.scale == piece.plan.scale
    };
    let all_same = experiments.len() == pieces.len()
        && experiments.iter().zip(&*pieces).all(|(a, b)| same(a, b));
    if !all_same {
        return Err("it has other experiments, or the same ones at other scales".into());
    }
    for (planned, piece) in experiments.iter().zip(pieces) {
        piece.rounds = piece.rounds.max(planned.rounds);
        for rounds in &mut piece.records {
            rounds.resize(piece.rounds as usize, None);
        }
        let lines = archive.lines.iter();
        for line in lines.filter(|line| line.experiment == planned.name) {
            let mut runs = piece.experiment.runs.iter();
            let run = runs.position(|run| run.label == line.run);
            let place = run.and_then(|run| piece.records[run].get_mut(line.round));
            let Some(place) = place else {
                return Err(format!("{}: there is no run `{}`", planned.name, line.run));
            };
            *place = line.record.as_deref().cloned();
            if let (Some(run), Some(why)) = (run, &line.error) {
                piece.failures.push((run, line.round, why.clone()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::archive::Line;
    use super::*;
    use crate::experiment::Experiment;
    use crate::record::Record;

    const NAME: &str = "prockstore-target-local";
    const SCALE: f64 = 0.001;

    fn build(commit: &str) -> Build {
        Build {
            commit: Some(commit.into()),
            ..Build::default()
        }
    }

    fn piece(rounds: u32) -> Piece {
        let experiment = Experiment::named(NAME).unwrap();
        let plan = experiment.plan(Some(SCALE)).unwrap();
        Piece::new(experiment, plan, Some(rounds))
    }

    /// Two rounds. A run of the second one has failed.
    fn archive() -> Archive {
        let piece = piece(2);
        let mut lines = Vec::new();
        for round in 0..2 {
            for (index, run) in piece.experiment.runs.iter().enumerate() {
                let failed = (index, round) == (0, 1);
                let record = Record {
                    until_idle_s: (10 * round + index) as f64,
                    build: build("abc"),
                    ..Record::default()
                };
                lines.push(Line {
                    experiment: NAME.into(),
                    run: run.label.clone(),
                    round,
                    record: (!failed).then(|| Box::new(record)),
                    error: failed.then(|| "the disk is full".into()),
                });
            }
        }
        Archive {
            manifest: Manifest {
                name: NAME.into(),
                experiments: vec![Planned::of(&piece)],
                ..Manifest::default()
            },
            lines,
        }
    }

    #[test]
    fn the_rounds_of_an_earlier_call_stay() {
        // More rounds are wanted, or fewer than there are.
        for rounds in [3, 1] {
            let mut pieces = [piece(rounds)];
            take_over(&mut pieces, &archive(), (NAME, false), &build("abc")).unwrap();
            let [piece] = pieces;
            assert_eq!(piece.rounds, rounds.max(2));
            assert_eq!(piece.failures, [(0, 1, "the disk is full".to_string())]);
            for (index, found) in piece.records.iter().enumerate() {
                let found: Vec<_> = found
                    .iter()
                    .map(|r| r.as_ref().map(|r| r.until_idle_s))
                    .collect();
                let second = (index > 0).then_some((10 + index) as f64);
                assert_eq!(found[..2], [Some(index as f64), second]);
                assert_eq!(found.len(), rounds.max(2) as usize);
            }
        }
    }

    #[test]
    fn what_does_not_match_is_refused() {
        let refused = |change: &dyn Fn(&mut Archive), own: &Build, says: &str| {
            let mut archive = archive();
            change(&mut archive);
            let error = take_over(&mut [piece(3)], &archive, (NAME, false), own).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        let own = build("abc");
        refused(
            &|a| a.manifest.name = "x".into(),
            &own,
            "the records of `x`, and this call",
        );
        refused(
            &|a| a.manifest.is_quick = true,
            &own,
            "--quick, and this call",
        );
        refused(
            &|a| a.manifest.experiments[0].scale = 0.5,
            &own,
            "other scales",
        );
        refused(
            &|a| a.manifest.experiments.clear(),
            &own,
            "other experiments",
        );
        refused(
            &|a| a.lines[0].run = "x".into(),
            &own,
            "there is no run `x`",
        );
        refused(&|a| a.lines[0].round = 2000, &own, "there is no run");
        refused(
            &|_| (),
            &build("def"),
            "figures of commit abc, and this program was built from def;",
        );
        let modified = Build {
            is_modified: Some(true),
            ..build("abc")
        };
        refused(&|_| (), &modified, "from abc with changes");
    }
}
