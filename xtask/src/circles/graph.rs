//! Strongly connected components of a graph.

use std::collections::BTreeSet;

/// The circles among `count` nodes: the components of more than one node, each in ascending order.
pub(crate) fn circles(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let mut reached = vec![BTreeSet::new(); count];
    for (start, reached) in reached.iter_mut().enumerate() {
        let mut waiting = vec![start];
        while let Some(from) = waiting.pop() {
            for (_, to) in edges.range((from, 0)..(from + 1, 0)) {
                if reached.insert(*to) {
                    waiting.push(*to);
                }
            }
        }
    }
    let mut circles: Vec<Vec<usize>> = Vec::new();
    for node in 0..count {
        let circle: Vec<usize> = (0..count)
            .filter(|other| reached[node].contains(other) && reached[*other].contains(&node))
            .collect();
        if circle.len() > 1 && circle[0] == node {
            circles.push(circle);
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_what_leads_back_to_itself() {
        let edges = BTreeSet::from([(0, 1), (1, 2), (2, 1), (2, 3), (4, 5), (5, 6), (6, 4), (0, 4)]);
        assert_eq!(circles(7, &edges), [vec![1, 2], vec![4, 5, 6]]);
        assert!(circles(2, &BTreeSet::from([(0, 1)])).is_empty());
    }
}
