//! Reads the file of a plan.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::PlanFileError;
use super::plan::{BEFORE, Contender, Plan, Row, Store};
use crate::experiment::Metric;
use crate::experiment::error::{Source, did_you_mean};
use crate::experiment::product::{Assigned, Assignment, assignments, fill_in, product};
use crate::experiment::section::{At, Section};
use crate::experiment::stores::DATA;
use crate::settings::{Abilities, Settings, ValueBytes, nearest, parse_size};

type Read<T> = Result<T, PlanFileError>;

const TOP: [&str; 6] = ["title", "notes", "settings", "engine", "store", "row"];
/// The keys of an engine that are no settings.
const ENGINE: [&str; 4] = ["name", "driver", "shares", "note"];
/// The keys of a store that are no settings.
const STORE: [&str; 3] = ["name", "title", "expected"];
/// The keys of a row that are no settings.
const ROW: [&str; 9] = [
    "store",
    "name",
    "engines",
    "pairs",
    "metric",
    "also",
    "memory_limit",
    "tenths",
    "expected",
];
/// The name of a row that does not say one.
const ROW_NAME: &str = "{workload}";
/// More rounds would only take longer.
const PAIRS_MAX: i64 = 100;

impl Plan {
    /// Reads a plan. `file` is its name for messages; the name of the plan is that of the file
    /// without folder and ending.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and column: TOML that cannot be read, a name
    /// that does not exist (with the nearest one), a value that a setting does not have, settings
    /// that contradict each other, two engines, stores or rows of one name, and a row that cannot
    /// use its store.
    pub fn parse(file: &str, text: &str) -> Result<Plan, PlanFileError> {
        let source = Source { file, text };
        let table = DeTable::parse(text).map_err(|error| {
            let message = error.message().trim().replace('\n', ", ");
            source.error(error.span().unwrap_or(0..0), message)
        })?;
        let top = Section {
            source,
            name: "the file".into(),
            span: 0..0,
            table: table.get_ref(),
        };
        top.refuse_others(&TOP)?;
        let base = match top.section("settings")? {
            Some(section) => assignments(&section, &[])?,
            None => Vec::new(),
        };
        let stem = Path::new(file).file_stem().unwrap_or_default();
        let mut plan = Plan {
            name: stem.to_string_lossy().into_owned(),
            title: top.required_text("title")?.0,
            notes: top.texts("notes")?,
            engines: read_engines(&top)?,
            stores: Vec::new(),
            rows: Vec::new(),
            text: text.into(),
        };
        let own = read_stores(&top, &mut plan, &base)?;
        for section in some_sections(&top, "row")? {
            read_row(&section, &mut plan, &base, &own)?;
        }
        Ok(plan)
    }
}

/// The tables of this name, of which there must be one.
fn some_sections<'a>(top: &Section<'a>, key: &str) -> Read<Vec<Section<'a>>> {
    let sections = top.sections(key)?;
    if sections.is_empty() {
        return Err(top.error(0..0, format!("the file has no table `[[{key}]]`")));
    }
    Ok(sections)
}

/// Names become parts of file names and of folders.
fn check_name(section: &Section<'_>, (name, span): &At<String>) -> Read<()> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if name.chars().all(is_plain) && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let message = format!(
        "the name `{name}` becomes part of file names, so it may have the letters a to z, digits, \
         `-` and `_`"
    );
    Err(section.error(span.clone(), message))
}

/// Refuses the second one of a name.
fn check_new<'a>(
    section: &Section<'_>,
    (name, span): &At<String>,
    what: &str,
    mut others: impl Iterator<Item = &'a str>,
) -> Read<()> {
    if !others.any(|other| other == name) {
        return Ok(());
    }
    Err(section.error(span.clone(), format!("two {what} have the name `{name}`")))
}

/// The error of a name that is none of these.
fn unknown<'a>(
    section: &Section<'_>,
    (name, span): &At<String>,
    what: &str,
    known: impl Iterator<Item = &'a str>,
) -> PlanFileError {
    let nearest = nearest(name, known);
    let message = format!("there is no {what} `{name}`{}", did_you_mean(nearest));
    section.error(span.clone(), message)
}

/// Refuses lists, which only rows may have.
fn refuse_lists(section: &Section<'_>, all: &[Assignment]) -> Read<()> {
    match all.iter().find(|one| one.values.len() > 1) {
        Some(one) => {
            let message = format!("`{}` is a list, which only a row may have", one.name.0);
            Err(section.error(one.name.1.clone(), message))
        }
        None => Ok(()),
    }
}

fn read_engines(top: &Section<'_>) -> Read<Vec<Contender>> {
    let mut engines: Vec<Contender> = Vec::new();
    for section in some_sections(top, "engine")? {
        let name = section.required_text("name")?;
        check_name(&section, &name)?;
        check_new(
            &section,
            &name,
            "engines",
            engines.iter().map(|e| e.name.as_str()),
        )?;
        if name.0 == BEFORE {
            let message = "`before` is the name of an earlier siltstone, which --against adds";
            return Err(section.error(name.1, message));
        }
        let own = assignments(&section, &ENGINE)?;
        refuse_lists(&section, &own)?;
        if let Some(other) = own.iter().find(|one| !one.name.0.starts_with("engine.")) {
            let message = format!(
                "`{}` belongs to a store or to a row, because all engines do the same work",
                other.name.0
            );
            return Err(section.error(other.name.1.clone(), message));
        }
        let settings = product(&section, &[], &own)?;
        let shares = match section.text("shares")? {
            Some(shared) => Some(shared_engine(&section, &engines, &shared)?),
            None => None,
        };
        let driver = section.text("driver")?.map(|(driver, _)| driver);
        engines.push(Contender {
            driver: match (driver, shares) {
                (Some(driver), _) => driver,
                (None, Some(shared)) => engines[shared].driver.clone(),
                (None, None) => name.0.clone(),
            },
            name: name.0,
            shares,
            note: section.text("note")?.map(|(note, _)| note),
            settings: texts_of(&own, settings.first()),
        });
        let last = &engines[engines.len() - 1];
        if let Some(shared) = shares
            && engines[shared].driver != last.driver
        {
            let message = format!(
                "`{}` cannot read the stores of `{}`, because that is another engine",
                last.name, engines[shared].name
            );
            return Err(section.error(section.span.clone(), message));
        }
    }
    Ok(engines)
}

fn shared_engine(section: &Section<'_>, engines: &[Contender], shared: &At<String>) -> Read<usize> {
    let found = engines.iter().position(|engine| engine.name == shared.0);
    let names = engines.iter().map(|engine| engine.name.as_str());
    let found = found.ok_or_else(|| unknown(section, shared, "engine before this one", names))?;
    match engines[found].shares {
        None => Ok(found),
        Some(_) => {
            let message = format!("`{}` has no stores of its own", shared.0);
            Err(section.error(shared.1.clone(), message))
        }
    }
}

/// Names and texts of what was assigned.
fn texts_of(own: &[Assignment], assigned: Option<&Assigned>) -> Vec<(String, String)> {
    let Some(assigned) = assigned else {
        return Vec::new();
    };
    let text = |one: &Assignment| {
        let name = one.name.0.clone();
        let value = assigned.settings.get(&name).unwrap_or_default();
        (name, value)
    };
    own.iter().map(text).collect()
}

/// Reads the stores into the plan, and returns what each of them assigns.
fn read_stores(
    top: &Section<'_>,
    plan: &mut Plan,
    base: &[Assignment],
) -> Read<Vec<Vec<Assignment>>> {
    let mut all = Vec::new();
    for section in some_sections(top, "store")? {
        let name = section.required_text("name")?;
        check_name(&section, &name)?;
        let others = plan.stores.iter().map(|store| store.name.as_str());
        check_new(&section, &name, "stores", others)?;
        let own = assignments(&section, &STORE)?;
        refuse_lists(&section, &own)?;
        refuse_lists(&section, base)?;
        let mut filled = product(&section, base, &own)?;
        let assigned = filled.remove(0);
        if !assigned.settings.workload.makes_store() {
            let workload = assigned.settings.workload;
            let span = assigned
                .position("workload")
                .unwrap_or(section.span.clone());
            let message = format!("a store is filled first, and `{workload}` does not fill one");
            return Err(section.error(span, message));
        }
        for engine in 0..plan.engines.len() {
            let settings = plan.with_own(&assigned.settings, engine);
            check_settings(&section, &assigned, &settings, &name.0)?;
        }
        plan.stores.push(Store {
            title: match section.text("title")? {
                Some((title, _)) => title,
                None => match assigned.settings.value_bytes {
                    ValueBytes::Fixed(bytes) => format!("Values of {bytes} bytes"),
                    other => format!("Values of {other}"),
                },
            },
            name: name.0,
            fill: assigned.settings,
            expected: read_expected(&section, plan)?,
        });
        all.push(own);
    }
    Ok(all)
}

fn check_settings(
    section: &Section<'_>,
    assigned: &Assigned,
    settings: &Settings,
    name: &str,
) -> Read<()> {
    settings.check(&Abilities::ALL).map_err(|refusal| {
        let found = assigned.position(refusal.setting);
        let workload = || assigned.position("workload");
        let span = found.or_else(workload).unwrap_or(section.span.clone());
        section.error(span, format!("`{name}`: {refusal}"))
    })
}

/// Reads one table `[[row]]`, which is several rows if it has lists.
fn read_row(
    section: &Section<'_>,
    plan: &mut Plan,
    base: &[Assignment],
    stores: &[Vec<Assignment>],
) -> Read<()> {
    let named = section.required_text("store")?;
    let store = plan.stores.iter().position(|store| store.name == named.0);
    let names = plan.stores.iter().map(|store| store.name.as_str());
    let store = store.ok_or_else(|| unknown(section, &named, "store", names))?;
    let own = assignments(section, &ROW)?;
    let is_replaced = |a: &&Assignment| stores[store].iter().all(|o| o.name.0 != a.name.0);
    let mut common: Vec<Assignment> = base.iter().filter(is_replaced).cloned().collect();
    common.extend(stores[store].iter().cloned());
    let template = section.text("name")?;
    let template = template.unwrap_or_else(|| (ROW_NAME.into(), section.span.clone()));
    let engines = read_row_engines(section, plan)?;
    for assigned in product(section, &common, &own)? {
        let name = fill_in(section, &template, &assigned.settings)?;
        let name = (name, template.1.clone());
        check_name(section, &name)?;
        let rows = plan.rows.iter().filter(|row| row.store == store);
        check_new(
            section,
            &name,
            "rows of a store",
            rows.map(|row| row.name.as_str()),
        )?;
        for engine in &engines {
            let settings = plan.with_own(&assigned.settings, *engine);
            check_settings(section, &assigned, &settings, &name.0)?;
        }
        check_use(section, plan, store, &assigned, &own, &engines)?;
        let workload = assigned.settings.workload;
        let metric = read_metric(section)?.unwrap_or(workload.compared_metric());
        plan.rows.push(Row {
            store,
            name: name.0,
            settings: assigned.settings,
            engines: engines.clone(),
            pairs: read_pairs(section)?,
            metric,
            also: read_also(section, metric)?,
            memory_limit: read_memory_limit(section)?,
            tenths: read_switch(section, "tenths")?,
            expected: read_expected(section, plan)?,
        });
    }
    Ok(())
}

/// Refuses a row that would find other keys or values than the store has, or would change the
/// store of another engine.
fn check_use(
    section: &Section<'_>,
    plan: &Plan,
    store: usize,
    assigned: &Assigned,
    own: &[Assignment],
    engines: &[usize],
) -> Read<()> {
    let workload = assigned.settings.workload;
    let position = assigned
        .position("workload")
        .unwrap_or(section.span.clone());
    let sharing = engines
        .iter()
        .find(|engine| plan.engines[**engine].shares.is_some());
    if let (true, Some(engine)) = (workload.writes(), sharing) {
        let message = format!(
            "`{}` reads the stores of another engine, and `{workload}` writes; leave it out of \
             `engines`",
            plan.engines[*engine].name
        );
        return Err(section.error(position, message));
    }
    if workload.makes_store() {
        return Ok(());
    }
    let fill = &plan.stores[store].fill;
    if workload.has_hashed_keys() != fill.workload.has_hashed_keys() {
        let message = format!(
            "`{workload}` has other keys than `{}`, which fills the store `{}`",
            fill.workload, plan.stores[store].name
        );
        return Err(section.error(position, message));
    }
    match own.iter().find(|one| DATA.contains(&one.name.0.as_str())) {
        Some(other) => {
            let message = format!(
                "`{}` is decided by the store `{}`, and only a row that fills may differ",
                other.name.0, plan.stores[store].name
            );
            Err(section.error(other.name.1.clone(), message))
        }
        None => Ok(()),
    }
}

/// The engines of a row: those that are listed, or else all that can take part.
fn read_row_engines(section: &Section<'_>, plan: &Plan) -> Read<Vec<usize>> {
    let Some(value) = section.value("engines") else {
        return Ok((0..plan.engines.len()).collect());
    };
    let wrong =
        |value: &Spanned<DeValue<'_>>| section.wrong_type("engines", value, "a list of names");
    let list = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
    let mut found = Vec::new();
    for item in list {
        let name = item.get_ref().as_str().ok_or_else(|| wrong(item))?;
        let named = (name.to_string(), item.span());
        let names = plan.engines.iter().map(|engine| engine.name.as_str());
        let engine = plan.engine_named(name);
        let engine = engine.ok_or_else(|| unknown(section, &named, "engine", names))?;
        if found.contains(&engine) {
            return Err(section.error(item.span(), format!("`{name}` is listed twice")));
        }
        found.push(engine);
    }
    if found.is_empty() {
        return Err(section.error(value.span(), "`engines` is empty"));
    }
    found.sort_unstable();
    Ok(found)
}

fn read_pairs(section: &Section<'_>) -> Read<u32> {
    let Some(value) = section.value("pairs") else {
        return Ok(1);
    };
    let number = match value.get_ref() {
        DeValue::Integer(integer) => integer.to_string().parse::<i64>().ok(),
        _ => None,
    };
    let number = number.filter(|number| (1..=PAIRS_MAX).contains(number));
    let number = number.and_then(|number| u32::try_from(number).ok());
    let expected = format!("a whole number from 1 to {PAIRS_MAX}");
    number.ok_or_else(|| section.wrong_type("pairs", value, &expected))
}

fn read_switch(section: &Section<'_>, key: &str) -> Read<bool> {
    let Some(value) = section.value(key) else {
        return Ok(false);
    };
    let found = value.get_ref().as_bool();
    found.ok_or_else(|| section.wrong_type(key, value, "true or false"))
}

fn read_metric(section: &Section<'_>) -> Read<Option<Metric>> {
    let Some(named) = section.text("metric")? else {
        return Ok(None);
    };
    metric_named(section, &named).map(Some)
}

fn metric_named(section: &Section<'_>, named: &At<String>) -> Read<Metric> {
    let names = Metric::ALL.iter().map(|metric| metric.name());
    let found = Metric::named(&named.0);
    found.ok_or_else(|| unknown(section, named, "metric", names))
}

/// The further figures of a row, whose own figure is `metric`.
fn read_also(section: &Section<'_>, metric: Metric) -> Read<Vec<Metric>> {
    let Some(value) = section.value("also") else {
        return Ok(Vec::new());
    };
    let wrong = |value: &Spanned<DeValue<'_>>| section.wrong_type("also", value, "a list of names");
    let list = value.get_ref().as_array().ok_or_else(|| wrong(value))?;
    let mut found = Vec::new();
    for item in list {
        let name = item.get_ref().as_str().ok_or_else(|| wrong(item))?;
        let also = metric_named(section, &(name.to_string(), item.span()))?;
        if also == metric || found.contains(&also) {
            return Err(section.error(item.span(), format!("the row has `{name}` already")));
        }
        found.push(also);
    }
    Ok(found)
}

fn read_memory_limit(section: &Section<'_>) -> Read<Option<u64>> {
    let Some((text, span)) = section.text("memory_limit")? else {
        return Ok(None);
    };
    let bytes = parse_size(&text);
    let bytes = bytes.map_err(|error| section.error(span, format!("`memory_limit`: {error}")));
    bytes.map(Some)
}

/// Operations a second by the names of engines.
fn read_expected(section: &Section<'_>, plan: &Plan) -> Read<BTreeMap<String, f64>> {
    let Some(section) = section.section("expected")? else {
        return Ok(BTreeMap::new());
    };
    let names: Vec<&str> = plan
        .engines
        .iter()
        .map(|engine| engine.name.as_str())
        .collect();
    section.refuse_others(&names)?;
    let mut found = BTreeMap::new();
    for (key, value) in section.table {
        let name = key.get_ref().to_string();
        found.insert(name.clone(), section.positive_of(&name, value)?);
    }
    Ok(found)
}
