"""The layers of docs/explain/architecture.md: reads every module's imports, runs none of them.

The rules are the three tables below; `violations` applies them to a source tree. The tests apply it
to ours, where it must find nothing, and to small trees with one planted fault each, where it must
find exactly that one.
"""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Which parts of `dcp` a part may import, besides itself. Lower never imports higher; the client and
# the producer never import each other, so that each can be tested against the other; what runs on a
# lake does not lean on the reference producer.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "types": frozenset({"errors"}),
    "file_lock": frozenset({"errors"}),
    "installation": frozenset(),
    "printable": frozenset(),
    "prometheus": frozenset({"printable"}),
    "quantities": frozenset(),
    "records": frozenset(),
    "relay_figures": frozenset({"prometheus", "records"}),
    "schemas": frozenset(),
    "seeds": frozenset({"errors"}),
    "setting_keys": frozenset({"errors", "records", "suggestions"}),
    "suggestions": frozenset(),
    "threads": frozenset(),
    "tls_settings": frozenset({"errors", "setting_keys"}),
    "wire": frozenset({"types", "errors"}),
    "protocol": frozenset({"types", "errors", "printable", "setting_keys", "wire"}),
    "client": frozenset(
        {"types", "errors", "records", "seeds", "setting_keys", "tls_settings", "wire", "protocol"}
    ),
    "server": frozenset(
        {
            "types",
            "errors",
            "file_lock",
            "printable",
            "prometheus",
            "records",
            "seeds",
            "setting_keys",
            "tls_settings",
            "wire",
            "protocol",
        }
    ),
    "producer": frozenset(
        {"types", "errors", "prometheus", "seeds", "setting_keys", "wire", "protocol", "server"}
    ),
    "lake": frozenset(
        {
            "types",
            "errors",
            "file_lock",
            "installation",
            "printable",
            "prometheus",
            "quantities",
            "records",
            "relay_figures",
            "seeds",
            "setting_keys",
            "suggestions",
            "threads",
            "tls_settings",
            "wire",
            "protocol",
            "client",
            "schemas",
        }
    ),
    "relay": frozenset(
        {
            "types",
            "errors",
            "printable",
            "prometheus",
            "records",
            "relay_figures",
            "seeds",
            "setting_keys",
            "tls_settings",
            "wire",
            "protocol",
            "client",
            "server",
        }
    ),
    "cli": frozenset(
        {
            "types",
            "errors",
            "installation",
            "printable",
            "prometheus",
            "quantities",
            "records",
            "relay_figures",
            "seeds",
            "setting_keys",
            "suggestions",
            "threads",
            "tls_settings",
            "wire",
            "protocol",
            "client",
            "server",
            "producer",
            "relay",
            "lake",
            "schemas",
        }
    ),
}

# The sub-packages of a part, from the lowest floor to the highest: each imports those before it
# only, for types alone, too.
FLOORS: dict[str, tuple[str, ...]] = {
    "server": (
        "model",
        "checkpoints",
        "storage",
        "vbucket",
        "streams",
        "bucket",
        "commands",
        "replication",
        "node",
    ),
    "lake": (
        "config",
        "store",
        "spark",
        "tables",
        "adapters",
        "task_board",
        "change_log",
        "rounds",
        "receive",
        "maintain",
        "apply",
        "quality",
        "run",
        "verify",
        "query",
        "monitor",
    ),
    "cli": ("terminal", "options", "displays", "lake", "demo", "servers"),
}
MOST_MODULES = 25
MOST_ATTRIBUTES = 15
MOST_METHODS = 20
# Their fields are settings, figures, columns, or the state that one thread shares with its parts;
# their methods pass calls on to parts, or change several of them together.
LARGE_CLASSES = frozenset(
    {
        "dcp.client.reader.Reader",
        "dcp.client.stats.ConnectionStats",
        "dcp.lake.adapters.spark_table.SparkTable",
        "dcp.lake.monitor.lake_figures.LakeFigures",
        "dcp.lake.run.driver.Driver",
        "dcp.lake.store.table.Table",
        "dcp.lake.task_board.task_stats.TaskStats",
        "dcp.producer.cluster.ProducerCluster",
        "dcp.protocol.connection.ConsumerConnection",
        "dcp.protocol.state.ConnectionState",
        "dcp.relay_figures.RelayFigures",
        "dcp.relay.settings.RelaySettings",
        "dcp.server.model.counters.Counters",
        "dcp.server.model.server_settings.ServerSettings",
        "dcp.server.model.versions.Version",
        "dcp.server.streams.snapshots.MemoryItems",
        "dcp.server.streams.active_stream.ActiveStream",
        "dcp.wire.columns.DataColumns",
    }
)
# Modules other than their own assign to their fields, as their docstrings say. The fields change
# independently of each other, so methods that set them would add nothing.
OPEN_CLASSES = frozenset(
    {
        "dcp.client.node_links.NodeLink",
        "dcp.client.vbucket_track.VbucketTrack",
        "dcp.lake.rounds.stream_result.StreamResult",
        "dcp.protocol.state.ConnectionState",
        "dcp.server.model.counters.Counters",
        "dcp.server.storage.saved_vbucket.StateOnDisk",
    }
)

# Modules beside the sub-packages, above all of them: what people and scripts run by its name.
ENTRY_POINTS: dict[str, tuple[str, ...]] = {"cli": ("class_archive", "main", "console")}

SPARK = frozenset({"pyspark", "delta", "py4j", "great_expectations", "airflow"})

# wire and protocol are functions of their input: bytes in, events out; time is an argument.
INPUT_AND_OUTPUT = frozenset(
    {
        "socket",
        "socketserver",
        "ssl",
        "select",
        "selectors",
        "http",
        "urllib",
        "ftplib",
        "subprocess",
    }
    | {
        "asyncio",
        "threading",
        "_thread",
        "queue",
        "concurrent",
        "multiprocessing",
        "sched",
        "signal",
    }
    | {"time", "datetime", "random", "secrets", "uuid", "tempfile"}
)
PURE = SPARK | INPUT_AND_OUTPUT

# Third-party and standard modules that a part may not import.
FORBIDDEN: dict[str, frozenset[str]] = {
    "errors": PURE | {"numpy", "pyarrow", "pandas"},
    "types": PURE | {"numpy", "pyarrow", "pandas"},
    "file_lock": SPARK | {"asyncio", "numpy", "pyarrow", "pandas"},
    "installation": PURE | {"numpy", "pyarrow", "pandas"},
    "printable": PURE | {"numpy", "pyarrow", "pandas"},
    "prometheus": SPARK | {"numpy", "pyarrow", "pandas"},
    "quantities": PURE | {"numpy", "pyarrow", "pandas"},
    "records": SPARK | {"numpy", "pyarrow", "pandas"},
    "relay_figures": PURE | {"numpy", "pyarrow", "pandas"},
    "seeds": PURE | {"numpy", "pyarrow", "pandas"},
    "setting_keys": PURE | {"numpy", "pyarrow", "pandas"},
    "suggestions": PURE | {"numpy", "pyarrow", "pandas"},
    "threads": SPARK | {"asyncio", "numpy", "pyarrow", "pandas"},
    "tls_settings": PURE - {"ssl"} | {"numpy", "pyarrow", "pandas"},
    "schemas": PURE,
    "wire": PURE,
    "protocol": PURE,
    "client": SPARK | {"asyncio", "pandas"},
    "server": SPARK | {"pandas"},
    "producer": SPARK | {"pandas"},
    "relay": SPARK | {"pandas"},
    "lake": frozenset({"airflow", "asyncio"}),
    "cli": frozenset({"airflow"}),
}

# The edge of server and producer: all else takes bytes and time as arguments, and gives bytes.
SERVER_EDGE: dict[str, str] = {
    "sockets and the loop": """background channels cluster_members cluster_nodes accepted_connection
        http_connection listener loop_thread
        rebalance rebalance_orders replication replicator server serving server_process turns
        wait_watch""",
    "threads that write and read the disk": """bucket_storage compactor disk_scan flusher
        pending_write parallel_writes""",
    "a lock, fresh numbers and the clock, for all behind it": """assembly auth cluster
        server_settings vbucket_table""",
    "names of the standard library, no I/O": "http_endpoints http_messages",
}

# What Spark Connect does not have. These modules may use it: one starts a JVM where it is asked for
# a classic session, one asks that JVM's own file systems.
CLASSIC_ONLY = frozenset(
    {"rdd", "sparkContext", "SparkContext", "accumulator", "parallelize", "DeltaTable", "_jvm"}
)
OF_CLASSIC_SPARK = (Path("dcp/lake/spark/session.py"), Path("dcp/lake/spark/hadoop.py"))

# What only the packages that store a lake name, in text or as a module.
OF_THE_STORE = re.compile(
    r"\b(?:VACUUM|RESTORE|OPTIMIZE|REORG|MERGE (?:WITH .*)?INTO|VERSION AS OF|INSERT INTO"
    r"|DELETE FROM|ALTER TABLE|CREATE (?:OR REPLACE )?TABLE|DESCRIBE (?:DETAIL|HISTORY))\b"
    r"|\bUSING delta\b|\bdelta\.|_delta_log"
)
MODULES_OF_THE_STORE = frozenset({"deltalake", "delta", "obstore"})
STORES_LAKES = ("dcp/lake/store/", "dcp/lake/adapters/")
MAY_NAME_DELTA: dict[str, str] = {
    "dcp/lake/tables/history.py": "reads the operations in a history, which Delta names",
    "dcp/lake/tables/horizon.py": "how long versions stay is in Delta's properties",
    "dcp/lake/tables/lake_tables.py": "makes tables with properties of Delta",
    "dcp/lake/spark/session.py": "registers the typed errors of Delta",
    "dcp/lake/spark/session_settings.py": "settings of a session are Delta's, too",
    "dcp/lake/spark/hadoop.py": "tells users the setting of a log store",
    "dcp/lake/config/required_spark.py": "settings of a session are Delta's, too",
    "dcp/lake/config/storage_options.py": "the setting of a log store is Delta's",
    "dcp/lake/spark/jars.py": "downloads jars, which are no files of a lake",
    "dcp/lake/spark/failures.py": "messages of Spark name files of the log",
    "dcp/lake/config/settings_load.py": "tells a folder with a lake, which nobody has opened yet",
    "dcp/lake/query/answers.py": "tells users how they name a table in SQL",
    "dcp/cli/lake/sql.py": "tells users how they name a table in SQL",
    "dcp/cli/demo/second_act.py": "shows what users ask in SQL",
    "dcp/cli/servers/demo.py": "shows what users ask in SQL",
}

# What reads rows of a table of a lake.
QUERIES = frozenset({"rows", "take_rows", "query", "bounded_query"})

PARTS_OF_OPENING = frozenset(
    {
        *(
            f"dcp.lake.adapters.opening.{name}"
            for name in ("lake_location", "refuse_to_start", "spark_of")
        ),
        "dcp.lake.tables.lake_tables.open_lake",
    }
)
"""What `dcp.lake.adapters.opening` puts together for all who open a lake."""

JOBS_MAY_IMPORT = frozenset({"lake", "cli", "errors"})
API_MAY_IMPORT = frozenset({"lake", "errors", "installation", "__version__"})
OURS = frozenset({"dcp", "dcplake", "jobs", "tests", "benchmarks"})


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Let the trees go that the tests of this module share: a million objects."""
    yield
    tree_of.cache_clear()


def imported_modules(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, wherever in the module it stands.

    `from a import b` counts as `a.b`: b may be a module, and if it is a name the prefix decides.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            for name in node.names:
                yield node.lineno, f"{origin}.{name.name}"


def part_of(module: str) -> str:
    """The part of `dcp` that a module belongs to: `wire` of `dcp.wire.codec`; empty for others."""
    names = module.split(".")
    return names[1] if names[0] == "dcp" and len(names) > 1 else ""


def wrong_imports(path: Path, root: Path, tree: ast.Module) -> Iterator[str]:
    relative = path.relative_to(root)
    top = relative.parts[0]
    package = ".".join(relative.parent.parts)
    part = relative.with_suffix("").parts[1] if top == "dcp" else ""
    for line, module in imported_modules(tree, package):
        outer, target = module.split(".")[0], part_of(module)
        where = f"{relative}:{line}"
        if module in PARTS_OF_OPENING and relative.parts[:3] != ("dcp", "lake", "adapters"):
            yield f"{where} imports {module}: opened_lake and opened_store open lakes"
        if top == "airflow" and outer in OURS:
            yield f"{where} imports {module}: airflow/ imports nothing of ours"
        elif top == "jobs" and outer in OURS and target not in JOBS_MAY_IMPORT:
            yield f"{where} imports {module}: jobs/ hold no logic, they call dcp.lake"
        elif top == "dcplake" and outer in OURS - {"dcplake"} and target not in API_MAY_IMPORT:
            yield f"{where} imports {module}: dcplake is a face of dcp.lake"
        elif top == "dcp" and outer in OURS - {"dcp"}:
            yield f"{where} imports {module}: dcp imports nothing beside it"
        elif part == "__init__":
            if outer == "dcp":
                yield f"{where} imports {module}: dcp itself is only a name"
        elif top == "dcp" and outer == "dcp":
            if target not in MAY_IMPORT[part] | {part, "__version__"}:
                yield f"{where} imports {module}: dcp.{part} may not import dcp.{target}"
        elif top == "dcp" and outer in FORBIDDEN[part]:
            yield f"{where} imports {module}: not in dcp.{part}"


def classic_only_names(path: Path, root: Path, tree: ast.Module) -> Iterator[str]:
    """Uses of what works on classic Spark alone."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in CLASSIC_ONLY:
                where = f"{path.relative_to(root)}:{node.lineno}"
                yield f"{where} uses {name}: Spark Connect has none"


def queries_of_changes(path: Path, root: Path, tree: ast.Module) -> Iterator[str]:
    """Queries of the change log by others than `dcp.lake.change_log`, which knows its rows."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="changes"), attr=name)) if (
                name in QUERIES
            ):
                where = f"{path.relative_to(root)}:{node.lineno}"
                yield f"{where} asks changes: dcp.lake.change_log does"


def names_of_the_store(path: Path, root: Path, tree: ast.Module) -> Iterator[str]:
    """Statements, settings, files and libraries of Delta, above the ports of a lake."""
    seen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # prose
    where = path.relative_to(root)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in seen:
                pass
            case ast.JoinedStr():  # a value may stand between two words of a statement
                parts = [each for each in node.values if isinstance(each, ast.Constant)]
                seen |= set(map(id, parts))
                text = "".join(str(part.value) for part in parts)
            case _:
                continue
        if named := OF_THE_STORE.search(" ".join(text.split())):
            yield f"{where}:{node.lineno} names {named[0]}: dcp.lake.store has ports"
    for line, module in imported_modules(tree, ".".join(where.parent.parts)):
        if module.split(".")[0] in MODULES_OF_THE_STORE:
            yield f"{where}:{line} names {module}: dcp.lake.store has ports"


def code_in_init(path: Path, root: Path, tree: ast.Module) -> Iterator[str]:
    """Anything in an `__init__.py` beyond docstring, imports, `__all__` and `__version__`."""
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                continue
        yield f"{path.relative_to(root)}:{node.lineno} holds code: an __init__.py holds names only"


def violations(root: Path) -> list[str]:
    """Every breach of the rules in the source tree at `root`, one line each."""
    found: list[str] = []
    for folder in ("dcp", "dcplake", "jobs", "airflow", "schemas"):
        for path in sorted((root / folder).rglob("*.py")):
            tree = tree_of(path)
            relative = path.relative_to(root)
            in_part = folder == "dcp" and relative.with_suffix("").parts[1]
            if in_part and in_part != "__init__" and in_part not in MAY_IMPORT:
                found.append(f"{relative}: dcp.{in_part} is in no layer")
                continue
            found += wrong_imports(path, root, tree)
            if in_part == "lake" and relative not in OF_CLASSIC_SPARK:
                found += classic_only_names(path, root, tree)
            if in_part == "lake" and path.parent.name != "change_log":
                found += queries_of_changes(path, root, tree)
            may_name = str(relative).startswith((*STORES_LAKES, *MAY_NAME_DELTA))
            if in_part in ("lake", "cli") and not may_name:
                found += names_of_the_store(path, root, tree)
            if path.name == "__init__.py":
                found += code_in_init(path, root, tree)
                if folder == "airflow":
                    found.append(f"{relative}: it would shadow the installed airflow")
    return found


def of_the_producer_alone(root: Path) -> list[str]:
    """Functions and classes of `dcp.server` that nobody but `dcp.producer` uses.

    Methods are not looked at: their users cannot be told by imports.
    """
    imported: dict[str, set[str]] = {}
    found: list[str] = []
    trees = {name: tree_of(path) for name, path in modules_of(root).items()}
    for name, tree in trees.items():
        for _, used in imported_modules(tree, name.rpartition(".")[0]):
            imported.setdefault(used, set()).add(part_of(name))
    for name, tree in trees.items():
        own = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        for node in tree.body:
            if part_of(name) == "server" and isinstance(node, ast.FunctionDef | ast.ClassDef):
                users = imported.get(f"{name}.{node.name}", set())
                if node.name not in own and users == {"producer"}:
                    found.append(f"{name}.{node.name}")
    return found


def test_the_server_has_nothing_that_only_the_producer_uses() -> None:
    assert of_the_producer_alone(ROOT) == []


def test_what_only_the_producer_uses_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "dcp/server/a.py", "def f(): ...\ndef g(): ...\nclass A: ...\nh = g()")
    plant(tmp_path, "dcp/producer/b.py", "from dcp.server.a import A, f, g")
    plant(tmp_path, "dcp/relay/c.py", "from dcp.server.a import A")
    assert of_the_producer_alone(tmp_path) == ["dcp.server.a.f"]


def test_our_tree_keeps_the_layers() -> None:
    assert violations(ROOT) == []


def test_who_may_name_delta_does() -> None:
    for name in MAY_NAME_DELTA:
        tree = tree_of(ROOT / name)
        assert list(names_of_the_store(ROOT / name, ROOT, tree)), f"{name} names nothing of Delta"


def test_server_and_producer_do_io_at_their_edge_only() -> None:
    """Each module of the edge has a reason to be of it, and no other does what they do."""
    edge = {name for names in SERVER_EDGE.values() for name in names.split()}
    found = set()
    for part in ("server", "producer"):
        for path in (ROOT / "dcp" / part).rglob("*.py"):
            tree = tree_of(path)
            names = {name.split(".")[0] for _, name in imported_modules(tree, f"dcp.{part}")}
            if names & INPUT_AND_OUTPUT:
                found.add(path.stem)
    assert found == edge


def modules_of(root: Path) -> dict[str, Path]:
    """The files of `dcp` by the names of their modules."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in (root / "dcp").rglob("*.py")
        if path.name != "__init__.py"
    }


def imports_among(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return the imports of each of these modules among them, for types alone, too."""
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = tree_of(path)
        named = [each for _, each in imported_modules(tree, name.rpartition(".")[0])]
        owners = {each if each in modules else each.rpartition(".")[0] for each in named}
        found[name] = (owners & modules.keys()) - {name}
    return found


def imports_upwards(imports: dict[str, set[str]]) -> list[str]:
    """Imports of a sub-package that is not below."""
    found = []
    for name, imported in imports.items():
        part = part_of(name)
        floors = (*FLOORS.get(part, ()), *ENTRY_POINTS.get(part, ()))
        for other in imported:
            if floors and part_of(other) == part_of(name):
                package, above = name.split(".")[2], other.split(".")[2]
                if package != above and floors.index(above) > floors.index(package):
                    found.append(f"{name} imports {other}: {above} is not below {package}")
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other in a circle: what is left without those that are in none."""
    left = {name: set(imported) for name, imported in imports.items()}
    while True:
        needed = set().union(*left.values()) if left else set()
        gone = {name for name, imported in left.items() if not imported or name not in needed}
        if not gone:
            return [sorted(left)] if left else []
        left = {name: each - gone for name, each in left.items() if name not in gone}


def test_sub_packages_import_downwards() -> None:
    assert imports_upwards(imports_among(modules_of(ROOT))) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(imports_among(modules_of(ROOT))) == []


def test_a_planted_circle_and_a_planted_import_upwards_are_found(tmp_path: Path) -> None:
    plant(tmp_path, "dcp/lake/config/a.py", "from dcp.lake.run import b")
    plant(tmp_path, "dcp/lake/run/b.py", "def f():\n    from dcp.lake.config.a import c")
    plant(tmp_path, "dcp/lake/run/d.py", "from dcp.lake.run.b import f")
    imports = imports_among(modules_of(tmp_path))
    (upwards,) = imports_upwards(imports)
    assert upwards == "dcp.lake.config.a imports dcp.lake.run.b: run is not below config"
    assert circles(imports) == [["dcp.lake.config.a", "dcp.lake.run.b"]]


def test_sub_packages_are_the_ones_that_are_there() -> None:
    for part, floors in FLOORS.items():
        folder = ROOT / "dcp" / part
        assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(floors)
        beside = {path.stem for path in folder.glob("*.py")}
        assert beside == {"__init__", *ENTRY_POINTS.get(part, ())}


def test_no_folder_has_more_modules_than_fit_on_a_screen() -> None:
    folders = [ROOT / "dcp", *(path.parent for path in (ROOT / "dcp").rglob("__init__.py"))]
    assert [each for each in folders if len(list(each.glob("*.py"))) > MOST_MODULES] == []


def test_no_two_public_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in modules_of(ROOT).items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {name: at for name, at in homes.items() if len(at) > 1} == {}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The names that a class declares, or its methods assign to `self`."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return declared | assigned


def public_methods_of(node: ast.ClassDef) -> set[str]:
    """The public methods of a class; a property is a value, and none of them."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(decorator) for decorator in each.decorator_list)
            if not each.name.startswith("_") and "property" not in decorators:
                found.add(each.name)
    return found


def classes_of(root: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    """All classes of `dcp`, with the names of their modules."""
    for name, path in sorted(modules_of(root).items()):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                yield name, node


def too_large_classes(root: Path) -> dict[str, str]:
    """Classes with too many attributes or public methods, with the counts that are too high."""
    found = {}
    for module, node in classes_of(root):
        attributes, methods = len(attributes_of(node)), len(public_methods_of(node))
        if attributes > MOST_ATTRIBUTES:
            found[f"{module}.{node.name}"] = f"{attributes} attributes"
        elif methods > MOST_METHODS:
            found[f"{module}.{node.name}"] = f"{methods} public methods"
    return found


@cache
def outside_assignments(root: Path) -> dict[str, set[str]]:
    """Assignments to attributes of objects that their function did not make.

    Returns for each the classes of other modules that have an attribute of the name. An attribute
    that a class of the module has, too, is none.
    """
    owners: dict[str, set[str]] = {}
    for module, node in classes_of(root):
        for name in attributes_of(node):
            owners.setdefault(name, set()).add(f"{module}.{node.name}")
    found = {}
    for module, path in modules_of(root).items():
        for function in ast.walk(tree_of(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                made = {"self", "cls"} | names_made_in(function)
                for each in ast.walk(function):
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                        homes = owners.get(each.attr, set())
                        is_own = isinstance(each.value, ast.Name) and each.value.id in made
                        is_own |= module in {home.rpartition(".")[0] for home in homes}
                        if homes and not is_own:
                            found[f"{module}:{each.lineno} assigns {ast.unparse(each)}"] = homes
    return found


def assignments_from_outside(root: Path, open_classes: Collection[str] = OPEN_CLASSES) -> list[str]:
    """Assignments to attributes of objects of other modules' classes, found by their names.

    What a module may assign to: `self`, objects of its own classes, what the function has just
    made, and the `OPEN_CLASSES`.
    """
    assigned = outside_assignments(root)
    return sorted(each for each, homes in assigned.items() if homes.isdisjoint(open_classes))


def names_made_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names to which a function assigns a new object: the result of a call of a class."""
    found = set()
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            called = ast.unparse(each.value.func).rpartition(".")[2]
            if called == "__new__" or called.lstrip("_")[:1].isupper():
                found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return found


def test_no_class_is_too_large() -> None:
    assert too_large_classes(ROOT).keys() == LARGE_CLASSES


def test_nothing_is_assigned_to_an_object_from_outside() -> None:
    assert assignments_from_outside(ROOT) == []


def test_each_open_class_needs_to_be_one() -> None:
    for name in OPEN_CLASSES:
        assert assignments_from_outside(ROOT, OPEN_CLASSES - {name}) != [], name


def test_a_planted_class_that_is_too_large_is_found(tmp_path: Path) -> None:
    attributes = "\n".join(f"        self.a{n} = {n}" for n in range(MOST_ATTRIBUTES + 1))
    methods = "\n".join(f"    def m{n}(self): ..." for n in range(MOST_METHODS + 1))
    plant(tmp_path, "dcp/lake/a.py", f"class A:\n    def __init__(self):\n{attributes}")
    plant(tmp_path, "dcp/lake/b.py", f"class B:\n{methods}")
    assert too_large_classes(tmp_path) == {
        "dcp.lake.a.A": "16 attributes",
        "dcp.lake.b.B": "21 public methods",
    }


def test_a_planted_assignment_from_outside_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "dcp/lake/a.py", "class A:\n    x: int\ndef f(a):\n    a.x = 1")
    plant(
        tmp_path,
        "dcp/lake/b.py",
        "class B:\n    y: int",
    )
    plant(
        tmp_path,
        "dcp/lake/c.py",
        "def f(a, b):\n    made = A()\n    made.x = 1\n    b.y, a.x, b.name = 1, 2, 3",
    )
    assert assignments_from_outside(tmp_path, {"dcp.lake.b.B"}) == ["dcp.lake.c:4 assigns a.x"]
    assert len(assignments_from_outside(tmp_path, set())) == 2


def test_every_part_is_really_there() -> None:
    """The rules name parts that exist: a renamed folder must not slip out of them."""
    parts = {path.with_suffix("").name for path in (ROOT / "dcp").iterdir() if path.suffix == ".py"}
    parts |= {path.parent.name for path in (ROOT / "dcp").glob("*/__init__.py")}
    assert parts - {"__init__"} == MAY_IMPORT.keys() - {"schemas"}
    assert MAY_IMPORT.keys() == FORBIDDEN.keys()


PLANTED = [
    ("dcp/wire/codec.py", "import socket", "socket"),
    ("dcp/wire/codec.py", "def f():\n    from random import random", "random.random"),
    ("dcp/wire/codec.py", "from dcp.protocol import stream", "dcp.protocol.stream"),
    ("dcp/wire/codec.py", "from dcp import protocol", "dcp.protocol"),
    ("dcp/wire/codec.py", "from ..protocol.stream import Stream", "dcp.protocol.stream.Stream"),
    ("dcp/protocol/flow.py", "import time", "time"),
    ("dcp/protocol/flow.py", "import os, threading", "threading"),
    ("dcp/protocol/flow.py", "import asyncio.streams", "asyncio.streams"),
    ("dcp/protocol/flow.py", "from pyspark.sql import Row", "pyspark.sql.Row"),
    ("dcp/protocol/deep/er.py", "from ... import client", "dcp.client"),
    (
        "dcp/client/a.py",
        "from dcp.server.node.server import Server",
        "dcp.server.node.server.Server",
    ),
    ("dcp/producer/a.py", "import dcp.client.consumer as c", "dcp.client.consumer"),
    ("dcp/producer/a.py", "import delta", "delta"),
    ("dcp/relay/a.py", "from dcp.producer.cluster import A", "dcp.producer.cluster.A"),
    ("dcp/server/a.py", "from dcp.producer import cluster", "dcp.producer.cluster"),
    ("dcp/lake/a.py", "from dcp.cli.main import main", "dcp.cli.main.main"),
    ("dcp/lake/a.py", "from tests.lake import fixtures", "tests.lake.fixtures"),
    (
        "dcp/cli/a.py",
        "from dcp.lake.adapters.opening import spark_of",
        "dcp.lake.adapters.opening.spark_of",
    ),
    ("dcp/types.py", "from dcp.wire import frame", "dcp.wire.frame"),
    ("dcp/errors.py", "from dcp.types import Seqno", "dcp.types.Seqno"),
    ("dcp/__init__.py", "from dcp.lake import run", "dcp.lake.run"),
    ("jobs/replicate.py", "from dcp.client import consumer", "dcp.client.consumer"),
    ("dcplake/lake.py", "from dcp.cli.main import main", "dcp.cli.main.main"),
    ("dcplake/lake.py", "from jobs import replicate", "jobs.replicate"),
    ("dcp/lake/a.py", "from dcplake import open", "dcplake.open"),
    ("airflow/dags/d.py", "import dcp.errors", "dcp.errors"),
    ("airflow/dags/d.py", "import dcplake", "dcplake"),
    ("airflow/dags/d.py", "from jobs import replicate", "jobs.replicate"),
]


@pytest.mark.parametrize(("path", "source", "imported"), PLANTED)
def test_planted_import_is_found(tmp_path: Path, path: str, source: str, imported: str) -> None:
    plant(tmp_path, path, source)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{path}:")
    assert f" imports {imported}:" in found


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("dcp/wire/__init__.py", '"""Doc."""\nx = 1', "dcp/wire/__init__.py:2 holds code"),
        ("dcp/wire/__init__.py", "def f(): ...", "dcp/wire/__init__.py:1 holds code"),
        ("airflow/__init__.py", "", "airflow/__init__.py: it would shadow"),
        ("dcp/common/strings.py", "", "dcp/common/strings.py: dcp.common is in no layer"),
        ("dcp/lake/a.py", "x = s.sparkContext", "dcp/lake/a.py:1 uses sparkContext"),
        ("dcp/lake/a.py", "DeltaTable.forPath(s, p)", "dcp/lake/a.py:1 uses DeltaTable"),
        ("dcp/lake/a.py", "lake.changes.rows('key', 'true')", "dcp/lake/a.py:1 asks changes"),
        ("dcp/lake/a.py", "f(f'VACUUM {t} DRY RUN')", "dcp/lake/a.py:1 names VACUUM"),
        ("dcp/lake/a.py", "f(f'delta.`{path}`')", "dcp/lake/a.py:1 names delta."),
        ("dcp/lake/a.py", "f(f'MERGE{how} INTO {t}')", "dcp/lake/a.py:1 names MERGE INTO"),
        ("dcp/lake/a.py", "f(f'{t} VERSION AS OF {n}')", "dcp/lake/a.py:1 names VERSION AS OF"),
        ("dcp/cli/a.py", "import deltalake", "dcp/cli/a.py:1 names deltalake"),
    ],
)
def test_planted_fault_is_found(tmp_path: Path, path: str, source: str, message: str) -> None:
    plant(tmp_path, path, source)
    (found,) = violations(tmp_path)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("dcp/wire/codec.py", "import struct\nimport numpy\nfrom dcp.types import Seqno"),
        (
            "dcp/wire/codec.py",
            "from . import frame\nfrom .frame import Frame\nfrom dcp import wire",
        ),
        ("dcp/protocol/flow.py", "from dcp.wire.messages import Noop\nfrom dcp.errors import E"),
        ("dcp/client/a.py", "import socket, threading, time\nimport dcp.protocol.stream"),
        ("dcp/lake/change_log/a.py", "lake.changes.rows('key', 'true')"),
        ("dcp/lake/change_log/a.py", '"""Runs before OPTIMIZE."""\ntimedelta.max'),
        ("dcp/lake/adapters/a.py", "import deltalake\nf(f'VACUUM {t}')"),
        ("dcp/lake/spark/session.py", "session.sparkContext.setLogLevel('ERROR')"),
        ("dcp/cli/a.py", "from dcp import __version__\nfrom dcp.producer import cluster"),
        (
            "dcp/lake/__init__.py",
            '"""Doc."""\nfrom dcp.lake.run.replicate import run\n__all__ = ["run"]',
        ),
        ("jobs/replicate.py", "import argparse\nfrom dcp.lake.run.replicate import run"),
        ("airflow/dags/d.py", "from airflow.sdk import DAG"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, path, source)
    assert violations(tmp_path) == []


def plant(root: Path, path: str, source: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source + "\n", encoding="utf-8")
