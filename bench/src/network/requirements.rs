//! What is required over a network.

use super::{LOSSES_PER_MILLION, MOST_HOSTS, READ, ROUND_TRIPS_MS, TCP, WRITE};
use crate::figures::Figures;
use crate::verdict::{Bound, Requirement};

/// Repeated packets of a million: 2 %.
const MOST_SENT_AGAIN: f64 = 20_000.0;

/// The requirements of which a figure was measured.
pub(crate) fn requirements(figures: &Figures) -> Vec<Requirement> {
    let mut all = Vec::new();
    for load in [READ, WRITE] {
        let (words, place) = (load.words(), format!("network/switch/{}", load.name()));
        all.push(Requirement::new(
            format!("1 Gbit/s, queue of 150 KB, {words}: bytes/s, by TCP cubic alone"),
            Bound::AtLeast(0.93),
            &figures.ratios(
                &format!("{place}/bytes_per_second"),
                "network/switch/tcp-cubic/bytes_per_second",
            ),
        ));
        all.push(Requirement::new(
            format!("there, {words}: packets sent again, of a million"),
            Bound::Below(MOST_SENT_AGAIN),
            figures.values(&format!("{place}/packets_sent_again_per_million")),
        ));
        all.extend(TCP.map(|tcp| {
            Requirement::new(
                format!("there, {words}: share beside a flow of TCP {tcp}"),
                Bound::Within(0.25, 0.75),
                figures.values(&format!("{place}-beside-{tcp}/share")),
            )
        }));
        all.extend([2, 4, MOST_HOSTS].map(|hosts| {
            Requirement::new(
                format!("there, {words}: Jain's index of {hosts} hosts"),
                Bound::AtLeast(0.9),
                figures.values(&format!("{place}-hosts-{hosts}/fairness")),
            )
        }));
        all.push(Requirement::new(
            format!("1 Gbit/s, queue that marks, {words}: packets dropped"),
            Bound::AtMost(0.0),
            figures.values(&format!("network/marking/{}/packets_dropped", load.name())),
        ));
    }
    all.extend(over_a_distance(figures));
    all.retain(|requirement| requirement.measured.is_some());
    all
}

fn over_a_distance(figures: &Figures) -> Vec<Requirement> {
    let mut all = Vec::new();
    for milliseconds in ROUND_TRIPS_MS {
        for lost_per_million in LOSSES_PER_MILLION {
            let place = format!("network/rtt-{milliseconds}ms-loss-{lost_per_million}ppm");
            let tcp = format!("{place}/tcp-cubic/bytes_per_second");
            all.extend([READ, WRITE].map(|load| {
                let loss = f64::from(lost_per_million) / 1e4;
                let words = load.words();
                Requirement::new(
                    format!("round trip of {milliseconds} ms, {loss} % lost, {words}: bytes/s, by TCP cubic"),
                    Bound::AtLeast(1.0),
                    &figures.ratios(&format!("{place}/{}/bytes_per_second", load.name()), &tcp),
                )
            }));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_is_required() {
        let mut figures = Figures::default();
        assert!(requirements(&figures).is_empty());
        figures.add("network/switch/randread-128k-32-beside-bbr/share", 0.1);
        figures.add("network/rtt-10ms-loss-100ppm/tcp-cubic/bytes_per_second", 1e6);
        figures.add("network/rtt-10ms-loss-100ppm/randwrite-128k-32/bytes_per_second", 2e6);
        let words: Vec<_> = requirements(&figures).iter().map(|line| line.word()).collect();
        assert_eq!(words, ["not yet", "met"]);
    }
}
