//! Selects the part of the runs that an emulated guest has time for.

use super::scenario::Run;

/// Number of parts that the runs are divided into. Each commit runs the next part.
const PARTS: usize = 5;

/// Returns one part of the runs, and one provider's run of each scenario in the smoke set.
/// `PARTS` consecutive numbers of commits cover all runs.
pub(super) fn part(runs: &[Run], commits: usize) -> Vec<Run> {
    let wanted = |(index, run): &(usize, &Run)| {
        let same = |other: &&Run| other.scenario == run.scenario;
        let nth = runs[..*index].iter().filter(same).count();
        let providers = runs.iter().filter(same).count();
        index % PARTS == commits % PARTS || run.smoke && nth == commits % providers
    };
    runs.iter().enumerate().filter(wanted).map(|(_, run)| run.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Vec<Run> {
        let scenarios = [("addresses", false), ("connect", true), ("data", true), ("reset", false)];
        let runs = scenarios.iter().flat_map(|(scenario, smoke)| {
            ["verbs", "soft"].map(|provider| Run {
                scenario: (*scenario).to_owned(),
                provider: provider.to_owned(),
                limit_seconds: 300,
                smoke: *smoke,
                expected: Vec::new(),
            })
        });
        runs.collect()
    }

    #[test]
    fn the_smoke_set_is_in_every_part() {
        for commits in 0..6 {
            let part = part(&runs(), commits);
            for scenario in ["connect", "data"] {
                assert!(part.iter().any(|run| run.scenario == scenario), "{commits}: {part:?}");
            }
            assert!(part.len() <= 5, "{commits}: {part:?}");
        }
    }

    #[test]
    fn consecutive_parts_are_all_runs() {
        for first in 0..6 {
            let parts: Vec<Run> = (first..first + PARTS).flat_map(|it| part(&runs(), it)).collect();
            assert!(runs().iter().all(|run| parts.contains(run)), "{first}");
        }
    }
}
