//! Calls on volumes and snapshots.

use serde_json::{Value, json};

use super::{FakePlant, call, config};
use crate::error::{BUSY, EXISTS, MISSING, PARAMETERS, QUOTA, UNSUPPORTED};
use crate::{CallError, Control};

struct Fixture {
    directory: tempfile::TempDir,
    control: Control,
    plant: FakePlant,
    can_clone: bool,
}

impl Fixture {
    fn new() -> Self {
        // The file system of this program has extended attributes.
        let beside = std::env::current_exe().expect("a path").with_file_name("");
        let place = std::env::var_os("NVLANE_REFLINK_DIR").map_or(beside, Into::into);
        let directory = tempfile::tempdir_in(place).expect("a directory");
        let text = format!(
            "[[pool]]\nname = \"fast\"\ndir = \"{}\"\nquota = \"1G\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = \"any\"\n",
            directory.path().display()
        );
        let control = Control::start(&config(&text), None).unwrap_or_else(|error| panic!("{error}")).control;
        let plant = FakePlant::new(&control);
        let can_clone = control.config().pools[0].open().can_share();
        Self { directory, control, plant, can_clone }
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        call(&mut self.control, &mut self.plant, method, params)
    }

    #[track_caller]
    fn done(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{}", error.message))
    }

    #[track_caller]
    fn refused(&mut self, method: &str, params: Value, code: i64) -> CallError {
        let error = self.call(method, params).expect_err("it is refused");
        assert_eq!(error.code, code, "{}", error.message);
        error
    }
}

#[test]
fn a_volume_is_created_served_grown_and_deleted() {
    let mut fixture = Fixture::new();
    let made = fixture.done("volume_create", json!({ "name": "fast/db", "size": "16M" }));
    let path = fixture.directory.path().join("db").display().to_string();
    assert_eq!(
        (&made["size"], &made["kind"], &made["source"]),
        (&json!(16 << 20), &json!("volume"), &Value::Null)
    );
    assert_eq!(made["storage"], format!("pool:{path}"));
    let again = fixture.refused("volume_create", json!({ "name": "fast/db", "size": 16 << 20 }), EXISTS);
    assert_eq!(again.data, Some(json!({ "object": made, "same": true })));
    let other = fixture.refused("volume_create", json!({ "name": "fast/db", "size": "1M" }), EXISTS);
    assert_eq!(other.data.expect("data")["same"], false);
    let add = json!({ "noun": "namespace", "values": { "storage": "pool:fast/db" } });
    fixture.done("add", add);
    let shown = fixture.done("show", json!({ "noun": "namespace", "name": 1 }));
    assert_eq!(shown["values"]["storage"], made["storage"], "the name of the pool stands for its directory");
    let by = json!([{ "subsystem": "nqn.2026-01.io.nvlane:a", "nsid": 1 }]);
    assert_eq!(fixture.done("volume_show", json!({ "name": "fast/db" }))["served_by"], by);
    let busy = fixture.refused("volume_delete", json!({ "name": "fast/db" }), BUSY);
    assert!(busy.message.contains("nqn.2026-01.io.nvlane:a namespace 1"), "{}", busy.message);
    assert_eq!(busy.data, Some(json!({ "served_by": by })));
    let grown = fixture.done("volume_resize", json!({ "name": "fast/db", "size": "32M" }));
    assert_eq!((&grown["size"], fixture.plant.look_count), (&json!(32 << 20), 1));
    fixture.done("remove", json!({ "noun": "namespace", "name": 1 }));
    assert_eq!(fixture.done("volume_delete", json!({ "name": "fast/db" })), json!({}));
    fixture.refused("volume_delete", json!({ "name": "fast/db" }), MISSING);
    assert_eq!(fixture.done("volume_list", json!({})), json!({ "objects": [] }));
}

#[test]
fn snapshots_and_clones_name_their_source_or_are_refused_with_the_reason() {
    let mut fixture = Fixture::new();
    let volume = fixture.done("volume_create", json!({ "name": "fast/db", "size": "1M" }));
    let snapshot = json!({ "name": "fast/monday", "volume": "fast/db" });
    let clone = json!({ "name": "fast/test", "source": "fast/db", "size": "2M" });
    if !fixture.can_clone {
        for (method, params) in [("snapshot_create", snapshot), ("volume_clone", clone)] {
            let error = fixture.refused(method, params, UNSUPPORTED);
            assert!(error.message.contains("reflink=1"), "{}", error.message);
        }
        return;
    }
    let made = fixture.done("snapshot_create", snapshot.clone());
    assert_eq!(made["source"], json!({ "name": "fast/db", "uuid": volume["uuid"] }));
    assert_eq!(fixture.refused("snapshot_create", snapshot, EXISTS).data.expect("data")["same"], true);
    assert_eq!(fixture.done("volume_clone", clone)["size"], 2 << 20);
    let of = |name: &str| json!({ "volume": name });
    assert_eq!(fixture.done("snapshot_list", of("fast/db"))["objects"], json!([made]));
    assert_eq!(fixture.done("snapshot_list", of("fast/test"))["objects"], json!([]));
    fixture.done("add", json!({ "noun": "namespace", "values": { "storage": "pool:fast/db" } }));
    fixture.refused("snapshot_rollback", json!({ "name": "fast/monday" }), BUSY);
    fixture.done("remove", json!({ "noun": "namespace", "name": 1 }));
    assert_eq!(fixture.done("snapshot_rollback", json!({ "name": "fast/monday" }))["uuid"], volume["uuid"]);
    fixture.done("snapshot_delete", json!({ "name": "fast/monday" }));
    assert_eq!(fixture.done("snapshot_list", json!({ "pool": "fast" })), json!({ "objects": [] }));
}

#[test]
fn wrong_calls_on_volumes_say_what_would_be_right() {
    let mut fixture = Fixture::new();
    fixture.done("volume_create", json!({ "name": "fast/db-1", "size": "1M" }));
    let foreign = fixture.directory.path().join("notes");
    std::fs::write(foreign, "mine").expect("written");
    for (method, params, code, message) in [
        ("volume_create", json!({ "name": "fast/a" }), PARAMETERS, "missing field `size`"),
        (
            "volume_create",
            json!({ "name": "fast/a", "size": 4096, "sise": 1 }),
            PARAMETERS,
            "unknown field `sise`",
        ),
        ("volume_create", json!({ "name": "fast/a", "size": -1 }), PARAMETERS, "such as \"10G\""),
        ("volume_create", json!({ "name": "fast/a", "size": "1X" }), PARAMETERS, "size: no size ends in 'X'"),
        (
            "volume_create",
            json!({ "name": "fast/a", "size": 5000 }),
            PARAMETERS,
            "size: 5000 bytes are not whole blocks",
        ),
        (
            "volume_create",
            json!({ "name": "fast/../a", "size": 4096 }),
            PARAMETERS,
            "name: \"../a\" is no name",
        ),
        ("volume_create", json!({ "name": "a", "size": 4096 }), PARAMETERS, "name: a is no POOL/NAME"),
        (
            "volume_create",
            json!({ "name": "fst/a", "size": 4096 }),
            MISSING,
            "no pool fst: did you mean fast?",
        ),
        ("volume_create", json!({ "name": "fast/a", "size": "2G" }), QUOTA, "past its quota"),
        ("volume_create", json!({ "name": "fast/notes", "size": 4096 }), -32001, "notes is no volume"),
        (
            "volume_clone",
            json!({ "name": "fast/a", "source": "other/b" }),
            PARAMETERS,
            "source: other/b is not in pool fast",
        ),
        (
            "volume_show",
            json!({ "name": "fast/db1" }),
            MISSING,
            "no volume fast/db1: did you mean fast/db-1?",
        ),
        ("snapshot_show", json!({ "name": "fast/db-1" }), MISSING, "no snapshot fast/db-1"),
        ("snapshot_rollback", json!({ "name": "fast/x" }), MISSING, "no snapshot fast/x"),
        ("volume_resize", json!({ "name": "fast/db-1", "size": 4096 }), PARAMETERS, "volumes only grow"),
        ("volume_list", json!({ "pool": "slow" }), MISSING, "no pool slow"),
        ("volume_list", json!({ "volume": "fast/db-1" }), PARAMETERS, "volume:"),
        ("pool_list", json!({ "pool": "fast" }), PARAMETERS, "no parameters"),
        ("volume_creat", json!({}), -32601, "did you mean volume_create?"),
    ] {
        let error = fixture.refused(method, params, code);
        assert!(error.message.contains(message), "{method}: {}", error.message);
    }
    let quota = fixture.refused("volume_create", json!({ "name": "fast/a", "size": "2G" }), QUOTA);
    let data = json!({ "quota": 1 << 30, "committed": 1 << 20, "needed": 2_u64 << 30 });
    assert_eq!(quota.data, Some(data));
}

#[test]
fn spdks_logical_volumes_are_volumes_of_a_pool() {
    let mut fixture = Fixture::new();
    let stores = fixture.done("bdev_lvol_get_lvstores", json!({}));
    assert_eq!((&stores[0]["name"], &stores[0]["cluster_size"]), (&json!("fast"), &json!(1 << 20)));
    assert!(stores[0]["free_clusters"].as_u64().is_some_and(|free| free > 0));
    let create = |size: u64| json!({ "lvol_name": "db", "size_in_mib": size, "lvs_name": "fast", "thin_provision": true });
    let uuid = fixture.done("bdev_lvol_create", create(16));
    assert_eq!(fixture.refused("bdev_lvol_create", create(8), -17).data.expect("data")["same"], false);
    let by_uuid = json!({ "lvol_name": "other", "size_in_mib": 1, "uuid": stores[0]["uuid"] });
    fixture.done("bdev_lvol_create", by_uuid);
    fixture.refused(
        "bdev_lvol_create",
        json!({ "lvol_name": "a", "size_in_mib": 1, "lvs_name": "slow" }),
        -19,
    );
    fixture.refused(
        "bdev_lvol_create",
        json!({ "lvol_name": "a", "size_in_mib": 4096, "lvs_name": "fast" }),
        -28,
    );
    let lvols = fixture.done("bdev_lvol_get_lvols", json!({ "lvs_name": "fast" }));
    assert_eq!((&lvols[0]["alias"], &lvols[0]["uuid"]), (&json!("fast/db"), &uuid));
    assert_eq!(lvols[0]["lvs"], json!({ "name": "fast", "uuid": stores[0]["uuid"] }));
    let bdev = fixture.done("bdev_get_bdevs", json!({ "name": "fast/db" }));
    let of = |key: &str| bdev[0][key].clone();
    assert_eq!(
        (of("name"), of("aliases"), of("product_name")),
        (uuid.clone(), json!(["fast/db"]), json!("Logical Volume"))
    );
    assert_eq!((of("num_blocks"), of("claimed")), (json!(4096), json!(false)));
    let nqn = "nqn.2026-01.io.nvlane:a";
    let add = json!({ "nqn": nqn, "namespace": { "bdev_name": "fast/db" } });
    assert_eq!(fixture.done("nvmf_subsystem_add_ns", add), 1);
    let shown = fixture.done("nvmf_get_subsystems", json!({ "nqn": nqn }));
    assert_eq!(shown[0]["namespaces"][0]["bdev_name"], uuid);
    assert_eq!(fixture.done("bdev_get_bdevs", json!({ "name": uuid }))[0]["claimed"], true);
    let limit = json!({ "name": "fast/db", "rw_ios_per_sec": 5000 });
    fixture.done("bdev_set_qos_limit", limit);
    let shown = fixture.done("bdev_get_bdevs", json!({ "name": uuid }));
    assert_eq!(shown[0]["assigned_rate_limits"]["rw_ios_per_sec"], 5000);
    let limit = json!({ "name": "fast/other", "rw_ios_per_sec": 5000 });
    assert!(fixture.refused("bdev_set_qos_limit", limit, PARAMETERS).message.contains("no namespace yet"));
    let resize = json!({ "name": "fast/db", "size_in_mib": 32 });
    assert_eq!((fixture.done("bdev_lvol_resize", resize), fixture.plant.look_count), (json!(true), 1));
    fixture.refused("bdev_lvol_delete", json!({ "name": uuid }), -16);
    let snapshot = json!({ "lvol_name": "fast/db", "snapshot_name": "monday" });
    match fixture.can_clone {
        true => {
            let made = fixture.done("bdev_lvol_snapshot", snapshot);
            fixture.done("bdev_lvol_clone", json!({ "snapshot_name": made, "clone_name": "test" }));
            fixture.done("bdev_lvol_delete", json!({ "name": made }));
        }
        false => drop(fixture.refused("bdev_lvol_snapshot", snapshot, UNSUPPORTED)),
    }
    fixture.done("nvmf_subsystem_remove_ns", json!({ "nqn": nqn, "nsid": 1 }));
    assert_eq!(fixture.done("bdev_lvol_delete", json!({ "name": uuid })), true);
    fixture.refused("bdev_lvol_delete", json!({ "name": uuid }), -19);
}

#[test]
fn pools_are_tables_of_the_configuration_with_their_space() {
    let mut fixture = Fixture::new();
    fixture.done("volume_create", json!({ "name": "fast/db", "size": "1M" }));
    let pools = fixture.done("pool_list", json!({}));
    let pool = &pools["objects"][0];
    assert_eq!(
        (&pool["name"], &pool["volumes"], &pool["committed"]),
        (&json!("fast"), &json!(1), &json!(1 << 20))
    );
    assert_eq!(pool["quota"], 1 << 30);
    assert!(pool["total"].as_u64().is_some_and(|total| (1..=1 << 30).contains(&total)));
    assert_eq!(pool["can_clone"], fixture.can_clone);
    let dir = fixture.directory.path().join("none").display().to_string();
    let add =
        |dir: &str| json!({ "noun": "pool", "name": "slow", "values": { "dir": dir, "space_low": "5%" } });
    fixture.done("add", add(&dir));
    let pools = fixture.done("pool_list", json!({}));
    assert!(pools["objects"][1]["error"].as_str().is_some_and(|error| error.contains("No such file")));
    fixture.done("remove", json!({ "noun": "pool", "name": "slow" }));
    for (values, message) in [
        (json!({ "dir": "relative" }), "pool.dir: dir is relative: write an absolute path"),
        (json!({ "dir": "/x", "quota": 0 }), "pool.quota: a pool of no bytes"),
        (json!({ "dir": "/x", "space_low": "110%" }), "pool.space_low: 110% is no share"),
        (json!({}), "missing key `dir`"),
        (json!({ "dir": fixture.directory.path() }), "it is the directory of pool fast too"),
    ] {
        let error =
            fixture.refused("add", json!({ "noun": "pool", "name": "slow", "values": values }), PARAMETERS);
        assert!(error.message.contains(message), "{}", error.message);
    }
    let add = json!({ "noun": "namespace", "values": { "storage": "pool:fsat/db" } });
    let error = fixture.refused("add", add, PARAMETERS);
    assert!(
        error.message.contains("there is no pool fsat: did you mean pool:fast/VOLUME?"),
        "{}",
        error.message
    );
}
