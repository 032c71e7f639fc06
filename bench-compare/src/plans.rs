//! The plans that are part of the program, and files of the user's own.
//!
//! Threading: pure functions.

use std::path::Path;

use siltstone_bench::compare::Plan;
use siltstone_bench::settings::nearest;

use crate::{Result, engines};

macro_rules! plans {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../plans/", $name, ".toml")))),+]
    };
}

/// Names and texts.
const PLANS: [(&str, &str); 10] = plans![
    "latency", "lz4", "memory", "merge", "quick", "size", "standard", "sync", "threads", "ycsb"
];

/// The plan of this name, or the one in this file.
pub fn find(name: &str) -> Result<Plan> {
    if name.ends_with(".toml") || name.contains('/') {
        let text = std::fs::read_to_string(Path::new(name));
        let text = text.map_err(|error| format!("{name}: {error}"))?;
        return Plan::parse(name, &text).map_err(|error| error.to_string());
    }
    let names = PLANS.iter().map(|(name, _)| *name);
    let Some((name, text)) = PLANS.iter().find(|(known, _)| *known == name) else {
        let nearest = nearest(name, names.clone());
        let nearest = nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(format!(
            "there is no plan `{name}`{nearest} The plans are {names}; a file ends with .toml"
        ));
    };
    Plan::parse(&format!("plans/{name}.toml"), text).map_err(|error| error.to_string())
}

/// Prints all plans and engines.
pub fn list() {
    println!("Plans:");
    for (name, text) in PLANS {
        match Plan::parse(&format!("plans/{name}.toml"), text) {
            Ok(plan) => {
                let forecast = plan.forecast(&plan.processes(), |_| None);
                let minutes = (forecast.seconds / 60.0).ceil();
                println!("  {name:<10} {}, about {minutes} minutes", plan.title);
            }
            Err(error) => println!("  {name:<10} {error}"),
        }
    }
    println!("Engines of this build: {}", engines::built().join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(plan: &Plan) -> f64 {
        plan.forecast(&plan.processes(), |_| None).seconds / 60.0
    }

    #[test]
    fn all_plans_can_be_read_and_take_the_time_that_they_may() {
        for (name, _) in PLANS {
            let plan = find(name).unwrap();
            for engine in &plan.engines {
                assert!(engines::is_known(&engine.driver), "{}", engine.driver);
            }
            assert!(plan.rows.len() > 1, "{name}");
        }
        assert!(minutes(&find("standard").unwrap()) < 120.0);
        assert!(minutes(&find("quick").unwrap()) < 5.0);
    }

    #[test]
    fn a_misspelt_plan_is_refused_with_the_nearest_one() {
        let error = find("standart").unwrap_err();
        assert!(error.contains("did you mean `standard`"), "{error}");
        assert!(find("/no/such/plan.toml").unwrap_err().contains("/no/such"));
    }
}
