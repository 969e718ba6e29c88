//! Formats times in UTC, without a time zone database.

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Days of 400 years of the Gregorian calendar.
const ERA_DAYS: u64 = 146_097;

/// Formats milliseconds since 1970 as `2026-11-29T17:05:00Z`.
pub(super) fn utc(unix_ms: u64) -> String {
    let (year, month, day) = date(unix_ms / DAY_MS);
    let seconds = unix_ms % DAY_MS / 1000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970. Years begin with March here, so that a leap day is the
/// last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    // Days since 1 March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    // Without the leap days before it, each year has 365 days.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // Five months from March on have 153 days.
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let number = if is_next_year { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(is_next_year), number, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leap_days_and_ends_of_years() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_971_900, "2026-11-29T17:05:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
    }
}
