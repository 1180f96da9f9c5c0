//! What `iccl plan` says of links whose cards were tried.

use iccl_tests::command::{clean, command_path, run_to_end};
use iccl_tests::plugin_folder;
use iccl_tests::rail::cards::{Card, fabric_folder, script};

/// One card of three gives `EFAULT`: its two links are staged for that reason, the third is direct, none is TCP.
#[test]
fn b082_iccl_plan_tells_whose_memory_was_refused() {
    let cards = [Card::Alias, Card::Address, Card::Alias];
    let script = script(&cards, plugin_folder(), &fabric_folder());
    let iccl = command_path().to_str().expect("text");
    let words =
        ["run", "-n", "3", "--no-prefix", "--", "sh", "-c", &script, "sh", iccl, "plan", "--json"];
    let ran = run_to_end(&mut clean(command_path(), plugin_folder(), &words));
    let plan = ran.json();
    assert_eq!(plan["tiers"], serde_json::json!({ "self": 3, "direct": 1, "staged": 2 }), "{plan}");
    let link = |src: u32, dst: u32| {
        let links = plan["links"].as_array().expect("links");
        let found = links.iter().find(|link| link["src"] == src && link["dst"] == dst);
        found.expect("the link").clone()
    };
    for (src, dst, side) in [(0, 1, "dst"), (1, 2, "src")] {
        let link = link(src, dst);
        assert_eq!(link["tier"], "staged");
        let better = link["refused_better"].as_array().expect("refusals");
        let refusal = better.iter().find(|refusal| refusal["tier"] == "direct").expect("refused");
        assert_eq!(refusal["reason"], "register-failed");
        assert_eq!(refusal["parameters"], serde_json::json!([side, "EFAULT"]));
        assert_eq!(refusal["text"], "registering device memory failed on rank 1: EFAULT");
    }
    let direct = link(0, 2);
    assert_eq!(direct["tier"], "direct");
    assert_eq!(
        (&direct["src_form"], &direct["dst_form"]),
        (&"host-alias".into(), &"host-alias".into())
    );
}
