//! "Did you mean …?"

use super::settings::{SECTIONS, SETTINGS};

/// The candidate that `wrong` most likely stands for, if any is near enough: at most a third of
/// its characters changed, swapped, added or left out.
pub fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = normalise(wrong);
    let allowed = (wrong.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wrong, &normalise(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `Op-Timeout` and `op_timeout` are the same slip of the pen.
fn normalise(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// `[plugins].path` for `plugins.path`.
fn bracketed(key: &str) -> String {
    match key.rsplit_once('.') {
        Some((table, name)) => format!("[{table}].{name}"),
        None => format!("[{key}]"),
    }
}

fn last_name(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// The settings of exactly this name, whatever their table.
pub(super) fn same_name(name: &str) -> Option<String> {
    let same: Vec<String> = SETTINGS
        .iter()
        .filter(|setting| last_name(setting.key) == name)
        .map(|setting| bracketed(setting.key))
        .collect();
    (!same.is_empty()).then(|| same.join(" or "))
}

/// What is said of a key that is no setting: which one may have been meant.
pub(super) fn unknown_key(prefix: &str, name: &str, is_table: bool) -> String {
    let table = prefix.trim_end_matches('.');
    let siblings = || {
        SETTINGS
            .iter()
            .filter_map(|setting| setting.key.strip_prefix(prefix))
            .map(|rest| rest.split('.').next().unwrap_or(rest))
    };
    let what = match (is_table, table) {
        (true, "") => format!("unknown table [{name}]"),
        (true, table) => format!("unknown table [{table}.{name}]"),
        (false, "") => format!("unknown key \"{name}\" outside of any table"),
        (false, table) => format!("unknown key \"{name}\" in [{table}]"),
    };
    let meant = if is_table {
        nearest_table(table, name, siblings())
    } else if let Some(same) = same_name(name) {
        Some(same)
    } else if let Some(near) = nearest(name, siblings()) {
        Some(format!("\"{near}\""))
    } else {
        nearest(name, SETTINGS.iter().map(|setting| last_name(setting.key))).and_then(same_name)
    };
    let meant = meant.map_or_else(
        || {
            let mut there: Vec<&str> = siblings().collect();
            there.dedup();
            if table.is_empty() || there.is_empty() {
                let tables = SECTIONS.iter().map(|(name, _)| *name).chain(whole_tables());
                format!("the tables are {}", tables.collect::<Vec<_>>().join(", "))
            } else {
                format!("[{table}] has {}", there.join(", "))
            }
        },
        |meant| format!("did you mean {meant}?"),
    );
    format!("{what}; {meant}")
}

/// The tables that are one setting as a whole.
fn whole_tables() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.key).filter(|key| !key.contains('.'))
}

/// Which table may have been meant by a table that is not known.
fn nearest_table<'a>(
    parent: &str,
    name: &str,
    siblings: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let at_root = || SETTINGS.iter().filter_map(|setting| setting.key.split('.').next());
    if at_root().any(|table| table == name) {
        return Some(format!("[{name}]"));
    }
    if let Some(near) = nearest(name, siblings) {
        let dot = if parent.is_empty() { "" } else { "." };
        return Some(format!("[{parent}{dot}{near}]"));
    }
    // Whoever writes a table of a name of his own here thinks of a plugin of that name.
    match parent {
        "transport" | "plugins" | "device" => Some(format!("[plugin.{name}]")),
        "" => same_name(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_accepts_slips_and_refuses_strangers() {
        let keys = ["enabled", "interface", "path"];
        assert_eq!(nearest("enabld", keys), Some("enabled"));
        assert_eq!(nearest("Enabled", keys), Some("enabled"));
        assert_eq!(nearest("inetrface", keys), Some("interface"));
        assert_eq!(nearest("pth", keys), Some("path"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
    }
}
