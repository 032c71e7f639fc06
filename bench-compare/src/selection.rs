//! Which engines and rows of a plan are asked for.
//!
//! Threading: plain data.

use siltstone_bench::compare::{Plan, Process};
use siltstone_bench::settings::nearest;

use crate::Result;

/// Some engines and rows of a plan.
pub struct Selection {
    engines: Vec<usize>,
    rows: Vec<usize>,
}

impl Selection {
    /// The engines and rows of these names; none means all. A row is `STORE.ROW`, or `ROW` in all
    /// stores.
    pub fn of(plan: &Plan, engines: &[String], rows: &[String]) -> Result<Selection> {
        let mut selection = Selection {
            engines: Vec::new(),
            rows: Vec::new(),
        };
        for name in engines {
            let names = plan.engines.iter().map(|engine| engine.name.as_str());
            let found = plan.engine_named(name);
            let found = found.ok_or_else(|| unknown(plan, "engine", name, names))?;
            selection.engines.push(found);
        }
        let full = |row: usize| {
            let row = &plan.rows[row];
            format!("{}.{}", plan.stores[row.store].name, row.name)
        };
        for name in rows {
            let is_named = |row: &usize| plan.rows[*row].name == *name || full(*row) == *name;
            let found: Vec<usize> = (0..plan.rows.len()).filter(is_named).collect();
            if found.is_empty() {
                let names: Vec<String> = (0..plan.rows.len()).map(full).collect();
                let short = plan.rows.iter().map(|row| row.name.as_str());
                let names = names.iter().map(String::as_str).chain(short);
                return Err(unknown(plan, "row", name, names));
            }
            selection.rows.extend(found);
        }
        if engines.is_empty() {
            selection.engines = (0..plan.engines.len()).collect();
        }
        if rows.is_empty() {
            selection.rows = (0..plan.rows.len()).collect();
        }
        Ok(selection)
    }

    /// Whether a process is asked for.
    pub fn has(&self, process: Process) -> bool {
        self.rows.contains(&process.row) && self.engines.contains(&process.engine)
    }
}

fn unknown<'a>(
    plan: &Plan,
    what: &str,
    name: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let near = nearest(name, names.clone());
    let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let names = names.join(", ");
    format!(
        "the plan `{}` has no {what} `{name}`{near} It has {names}",
        plan.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| name.to_string()).collect()
    }

    fn quick() -> Plan {
        crate::plans::find("quick").unwrap()
    }

    #[test]
    fn nothing_named_is_everything() {
        let plan = quick();
        let all = Selection::of(&plan, &[], &[]).unwrap();
        assert!(plan.processes().into_iter().all(|process| all.has(process)));
    }

    #[test]
    fn engines_and_rows_are_chosen_by_name() {
        let plan = quick();
        let some = Selection::of(&plan, &names(&["leveldb"]), &names(&["readrandom"])).unwrap();
        let chosen = plan
            .processes()
            .into_iter()
            .filter(|process| some.has(*process));
        let chosen: Vec<String> = chosen.map(|process| plan.id(process)).collect();
        assert!(!chosen.is_empty());
        for id in chosen {
            assert!(id.contains(".readrandom.leveldb."), "{id}");
        }
    }

    #[test]
    fn a_misspelt_name_is_refused_with_the_nearest_one() {
        let error = Selection::of(&quick(), &names(&["levledb"]), &[])
            .err()
            .unwrap();
        assert!(error.contains("did you mean `leveldb`"), "{error}");
        let error = Selection::of(&quick(), &[], &names(&["readrandon"]))
            .err()
            .unwrap();
        assert!(error.contains("did you mean `readrandom`"), "{error}");
    }
}
