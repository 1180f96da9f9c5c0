//! The examples of the runtime that carry their plugins do what they say; they verify it themselves.

#[path = "../../iccl-runtime/examples/overlap.rs"]
mod overlap;

#[test]
fn overlap_multiplies_while_sums_travel() {
    for rows in [2, 32, 130] {
        overlap::run(rows).unwrap_or_else(|error| panic!("{rows} rows: {error}"));
    }
}
