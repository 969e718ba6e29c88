//! Plot of 4 KiB random reads by depth, as SVG.

use std::fmt::Write as _;

use crate::figures::Figures;
use crate::load::{BenchProvider, Load, MediumKind};
use crate::spdk;
use crate::verdict;

/// Size of a panel without its labels, in pixels.
const PANEL: (f64, f64) = (300.0, 220.0);
/// Distance of the first panel from the left edge, and of all panels from the upper edge.
const MARGIN: (f64, f64) = (60.0, 40.0);
/// Distance from the left edge of a panel to that of the next.
const PITCH: f64 = PANEL.0 + 70.0;
/// Range of both axes: depths, and IOPS.
const DEPTHS: (f64, f64) = (1.0, 128.0);
const IOPS: (f64, f64) = (1e4, 4e6);

const PANELS: [(MediumKind, &str); 2] =
    [(MediumKind::File, "file"), (MediumKind::Null, "null namespace")];

/// Program that the reads go through, with its colour.
#[derive(Clone, Copy)]
enum Curve {
    Ours(BenchProvider),
    Spdk,
    Fio,
}

impl Curve {
    const ALL: [Self; 4] =
        [Self::Ours(BenchProvider::Shm), Self::Ours(BenchProvider::Soft), Self::Spdk, Self::Fio];

    fn name(self) -> String {
        match self {
            Self::Ours(provider) => format!("Feedrail, {}", provider.name()),
            Self::Spdk => "SPDK, NVMe/TCP".to_owned(),
            Self::Fio => "fio, local".to_owned(),
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Ours(BenchProvider::Shm) => "#0b6e4f",
            Self::Ours(BenchProvider::Soft) => "#1f77b4",
            Self::Spdk => "#d1495b",
            Self::Fio => "#6b6b6b",
        }
    }

    fn figure(self, medium: MediumKind, load: &Load) -> Option<String> {
        match (self, medium) {
            (Self::Ours(provider), _) => Some(verdict::of_provider(provider, medium, load, "iops")),
            (Self::Spdk, _) => Some(spdk::figure(medium, load, "iops")),
            (Self::Fio, MediumKind::File) => {
                Some(format!("ceilings/fio-huge/{}/iops", load.name()))
            }
            (Self::Fio, _) => None,
        }
    }

    /// Depth and median of the runs for each load that was measured.
    fn points(self, figures: &Figures, medium: MediumKind) -> Vec<(f64, f64)> {
        let is_shown = |load: &Load| load.pattern == "randread" && load.block_bytes == 4 << 10;
        let loads = Load::ALL.into_iter().filter(is_shown);
        let point = |load: Load| {
            let spread = figures.spread(&self.figure(medium, &load)?)?;
            Some((f64::from(load.depth), spread.median))
        };
        loads.filter_map(point).collect()
    }
}

/// Position of a value on a logarithmic axis, from 0 to 1.
fn along(value: f64, (first, last): (f64, f64)) -> f64 {
    ((value / first).ln() / (last / first).ln()).clamp(0.0, 1.0)
}

/// Draws the plot: a panel for each medium, with logarithmic axes.
pub(crate) fn svg(figures: &Figures) -> String {
    let (width, height) = (MARGIN.0 + 2.0 * PITCH, MARGIN.1 + PANEL.1 + 80.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, (medium, title)) in PANELS.into_iter().enumerate() {
        let left = MARGIN.0 + PITCH * number as f64;
        draw_axes(&mut svg, left, title);
        for curve in Curve::ALL {
            draw_curve(&mut svg, left, curve.colour(), &curve.points(figures, medium));
        }
    }
    for (number, curve) in Curve::ALL.into_iter().enumerate() {
        let (x, y) = (MARGIN.0 + 170.0 * number as f64, height - 12.0);
        let colour = curve.colour();
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 4.0,
            x + 10.0,
            curve.name(),
        );
    }
    svg + "</svg>\n"
}

fn draw_axes(svg: &mut String, left: f64, title: &str) {
    let (right, top, bottom) = (left + PANEL.0, MARGIN.1, MARGIN.1 + PANEL.1);
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">4 KiB random read, {title}: IOPS by depth</text>",
        top - 16.0
    );
    for (iops, label) in [(1e4, "10 k"), (1e5, "100 k"), (1e6, "1 M")] {
        let y = bottom - PANEL.1 * along(iops, IOPS);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    for depth in [1, 4, 16, 32, 128] {
        let x = left + PANEL.0 * along(depth.into(), DEPTHS);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{depth}</text>",
            bottom + 18.0
        );
    }
}

fn draw_curve(svg: &mut String, left: f64, colour: &str, points: &[(f64, f64)]) {
    let place = |&(depth, iops): &(f64, f64)| {
        let x = left + PANEL.0 * along(depth, DEPTHS);
        (x, MARGIN.1 + PANEL.1 * (1.0 - along(iops, IOPS)))
    };
    let line: Vec<String> =
        points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let line = line.join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
    );
    for (x, y) in points.iter().map(place) {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measured_point_is_drawn_once() {
        let mut figures = Figures::default();
        let load = Load::new("randread", 4 << 10, 32);
        let shm = Curve::Ours(BenchProvider::Shm);
        for (curve, medium, iops) in [
            (shm, MediumKind::File, 2e5),
            (Curve::Spdk, MediumKind::Null, 3e5),
            (Curve::Fio, MediumKind::File, 3e5),
        ] {
            figures.add(curve.figure(medium, &load).unwrap(), iops);
        }
        let svg = svg(&figures);
        assert_eq!(svg.matches("r=\"3\"").count(), 3, "{svg}");
        // Half of the height, five sevenths of the width.
        let (x, y) = (MARGIN.0 + PANEL.0 * 5.0 / 7.0, MARGIN.1 + PANEL.1 / 2.0);
        let point = format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"", shm.colour());
        assert!(svg.contains(&point), "{point}\n{svg}");
    }
}
