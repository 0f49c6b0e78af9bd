"""What `fedpriv deploy init` makes: certificates that verify, keys that fit, scripts that parse."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers.hosted_grid import ROOT
from typer.testing import CliRunner

from fedpriv._internal.validation import ArgumentError
from fedpriv.cli import app
from fedpriv.config.plan import make_plan
from fedpriv.config.schema import Config
from fedpriv.deployment import flower_app, keys, scripts
from fedpriv.deployment.folders import read_parties, read_server
from fedpriv.deployment.provision import Request, provision
from fedpriv.node.secure_parties import pinned

HOSTS = ("fl.hospital.example", "10.0.0.7")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "deployment"
    provision(folder, Request(3, HOSTS))
    return folder


def test_the_certificate_is_issued_for_the_hosts(made: Path) -> None:
    server = read_server(made)
    (certificate,) = keys.read_certificates(server.path("certificate"))
    keys.require_issued([certificate], keys.read_certificates(server.roots), server.roots)
    keys.require_key_of(certificate, server.path("certificate-key"), "the server's")
    assert all(keys.covers(certificate, host) for host in HOSTS)
    assert not any(keys.covers(certificate, host) for host in ("localhost", "10.0.0.8", "hospital.example"))


def test_each_node_has_a_key_of_its_own_that_the_server_knows(made: Path) -> None:
    server, *nodes = [party for party in read_parties(made) if not party.is_operator]
    lines = [keys.read_node_private(Path(node.policy["private-key"])) for node in nodes]
    assert lines == [keys.read_node_public(path) for path in server.public_keys]
    assert len(set(lines)) == 3
    assert [node.policy["partition-id"] for node in nodes] == [0, 1, 2]
    assert nodes[0].server_address == ("fl.hospital.example", 9443)


def test_private_files_are_for_their_owner_alone(made: Path) -> None:
    private = [made / "authority/ca.key", *made.glob("server/*.key"), *made.glob("*/node.key")]
    private += made.glob("operator-*/operator.key")
    assert len(private) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    folders = [path for path in made.iterdir() if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    held = [path for path in made.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(held) == sorted(private)


def test_each_node_has_an_identity_that_all_nodes_pin(made: Path) -> None:
    keys_of = [pinned(node.policy.node_config, 3, 3) for node in read_parties(made) if node.is_node]
    assert len({identity.public for _, identity, _ in keys_of}) == 3
    assert len({peers for _, _, peers in keys_of}) == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.glob("node-*/identity.key")} == {0o600}


def test_an_existing_folder_is_not_written_over(made: Path) -> None:
    before = (made / "node-0/node.key").read_bytes()
    with pytest.raises(ArgumentError, match="new folder"):
        provision(made, Request(3))
    assert (made / "node-0/node.key").read_bytes() == before


def test_a_fault_while_the_folder_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "make_node_key", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        provision(tmp_path / "broken", Request(1))
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("script", ["server/start.sh", "node-1/start.sh"])
def test_the_start_scripts_are_bash(made: Path, script: str) -> None:
    path = made / script
    assert path.stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", path], check=True, timeout=20)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, path], check=True, timeout=60)


def test_the_superlink_listens_on_loopback_with_authentication_and_a_database(made: Path) -> None:
    script = (made / "server/start.sh").read_text()
    for words in ("--host 127.0.0.1", "--enable-supernode-auth", "--database", "--ssl-certfile"):
        assert words in script
    assert "--insecure" not in script + (made / "node-0/start.sh").read_text()


def test_the_systemd_units_start_the_scripts_as_an_ordinary_user(made: Path) -> None:
    units = [*made.glob("server/*.service"), *made.glob("node-*/*.service")]
    assert len(units) == 6
    for unit in units:
        text = unit.read_text()
        for line in ("User=fedpriv", "NoNewPrivileges=true", "ProtectSystem=strict", "Restart=on-failure"):
            assert line in text.splitlines()
        assert f"ExecStart=/etc/fedpriv/{unit.parent.name}/start.sh" in text
        assert ("LimitNOFILE=65536" in text.splitlines()) == (unit.parent.name == "server")


def test_the_example_runs_are_valid_and_for_all_nodes(made: Path) -> None:
    files = [path for path in (made / "server").glob("*.toml") if path.name != "party.toml"]
    assert len(files) == 4
    for path in files:
        settings = tomllib.loads(path.read_text())
        assert make_plan(Config.parse(settings)).config.clients == 3
        read_parties(made, "node-0")[0].policy.check(settings)  # as each node's owner receives it


@pytest.mark.parametrize("nodes", [2, 1_000])
def test_the_example_runs_have_a_plan_for_any_number_of_nodes(nodes: int) -> None:
    for text in scripts.example_runs(nodes).values():
        plan = make_plan(Config.parse(tomllib.loads(text)))
        assert plan.config.delta < 1 / (1000 * nodes)


def test_the_app_has_all_settings_and_imports_the_installed_package() -> None:
    files = flower_app.files()
    pyproject = tomllib.loads(files["pyproject.toml"])
    assert pyproject["tool"]["flwr"]["app"]["config"].keys() == set(Config.keys())
    for name in ("server", "client"):
        found: dict[str, object] = {}
        exec(files[f"fedpriv_app/{name}.py"], found)
        assert type(found["app"]).__name__ == f"{name.capitalize()}App"


def test_a_real_certificate_and_the_nodes_own_keys_are_used_by_path(made: Path, tmp_path: Path) -> None:
    public = tuple(made / f"server/node-keys/node-{k}.pub" for k in range(3))
    files = made / "server/server.crt", made / "server/server.key", made / "server/ca.crt"
    folder = tmp_path / "real"
    provision(folder, Request(3, HOSTS, "::", 9445, 8001, *files, public, operators=()))
    server, *nodes = [party for party in read_parties(folder) if not party.is_operator]
    assert server.path("certificate") == files[0].absolute()
    assert [path.name for path in folder.rglob("*.key")] == ["loopback.key"]
    assert [keys.read_node_public(path) for path in server.public_keys] == [
        keys.read_node_public(path) for path in public
    ]
    assert nodes[2].roots.read_bytes() == files[2].read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": 0}, "--nodes"),
        ({"port": 70000}, "--port is 70000"),
        ({"port": 8000}, "differ from the other ports"),
        ({"hosts": ("a b",)}, "--host"),
        ({"hosts": ('x"; rm',)}, "--host"),
        ({"certificate": Path("x.crt")}, "together"),
        ({"public_keys": (Path("a.pub"),)}, "--node-public-key"),
    ],
)
def test_what_cannot_be_provisioned_is_refused_before_anything_is_made(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    request = Request(**({"nodes": 2} | changes))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=said):
        provision(tmp_path / "none", request)
    assert not (tmp_path / "none").exists()


def test_a_certificate_of_another_host_is_refused(made: Path, tmp_path: Path) -> None:
    files = made / "server/server.crt", made / "server/server.key", made / "server/ca.crt"
    with pytest.raises(ArgumentError, match="a name that the certificate covers"):
        provision(tmp_path / "none", Request(1, ("elsewhere.example",), "::", 9445, 8001, *files))


def test_python_connects_by_the_test_certificate(made: Path) -> None:
    """The strictest verification of Python accepts the chain."""
    context = ssl.create_default_context(cafile=str(made / "node-0/ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(made / "server/server.crt", made / "server/server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=HOSTS[0])
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()


def test_the_command_makes_and_shows_the_folders(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "d"), "--nodes", "2"])
    assert result.exit_code == 0, result.output
    assert "node-1" in result.output
    again = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "d"), "--nodes", "2"])
    assert again.exit_code == 2


def test_the_compose_file_has_all_parties_on_a_read_only_root(made: Path) -> None:
    compose = yaml.safe_load((made / "compose.yaml").read_text())
    assert set(compose["services"]) == {"server", "node-0", "node-1", "node-2"}
    for name, service in compose["services"].items():
        assert service["read_only"] is True
        assert service["user"] == "10001:10001"
        assert service["cap_drop"] == ["ALL"]
        assert all((made / volume.split(":")[0]).parent.is_dir() for volume in service["volumes"]), name
    assert compose["services"]["node-0"]["volumes"][0].endswith(":ro")  # the key and the policy
    assert any(volume.endswith("/party/ledger") for volume in compose["services"]["node-0"]["volumes"])
    assert "ports" not in compose["services"]["node-0"]
    assert compose["services"]["server"]["ulimits"] == {"nofile": 65536}
    waits = [compose["services"][f"node-{k}"]["depends_on"] for k in range(3)]
    assert waits == [{"server": {"condition": "service_healthy"}}] * 3  # of the image's health check


def test_the_image_is_built_from_the_checkout_and_runs_as_an_ordinary_user() -> None:
    """A container runtime is not needed for what the file promises in its text."""
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]
    assert words[-4:] == ["USER", "WORKDIR", "HEALTHCHECK", "ENTRYPOINT"]
    assert "USER 10001:10001" in lines
    assert '    CMD ["python", "-m", "fedpriv.deployment.running", "/party"]' in lines
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() and source in allowed for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {*forced, "fedpriv", project["project"]["readme"], "LICENSE"} <= set(allowed)
    assert not any("http" in line or "git+" in line for line in lines)
