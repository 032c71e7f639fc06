//! Files that import each other, directly or through others.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::imports::Import;

/// Every circle of at least two files, the largest first. Each is a sorted list of files.
pub fn circles<'a>(imports: impl IntoIterator<Item = &'a Import>) -> Vec<Vec<&'a str>> {
    let edges = imports
        .into_iter()
        .map(|import| (import.from.as_str(), import.to.as_str()));
    let graph: DiGraphMap<&str, ()> = DiGraphMap::from_edges(edges);
    let mut found: Vec<Vec<&str>> = tarjan_scc(&graph)
        .into_iter()
        .filter(|files| files.len() > 1)
        .collect();
    for files in &mut found {
        files.sort_unstable();
    }
    found.sort_by_key(|files| (std::cmp::Reverse(files.len()), files[0]));
    found
}
