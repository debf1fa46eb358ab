# Partywall's front door. `make` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tests start the command thousands of times. It keeps what it has compiled, as it does at a user's.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
BUILT := agent/target/$(HOST)/release/partywall-agent
AGENT := src/partywall/_bin/partywall-agent
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# Without them: no venv, no linker, no container sandboxes, no disks for guests.
PACKAGES := python3-venv gcc libc6-dev crun e2fsprogs
# Without it: no machines elsewhere; all else works, and `partywall doctor` says so.
SSH_PACKAGES := openssh-client
# For the extra `libvirt`: its headers, and a daemon for the tests.
LIBVIRT_PACKAGES := libvirt-dev pkg-config gcc python3-dev libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-utils
# For the Xen lab, which boots Debian's Xen in an emulated machine.
XEN_LAB_PACKAGES := qemu-system-x86 mmdebstrap e2fsprogs util-linux openssh-client
# For the stock hosts, which are built and booted in QEMU.
HOSTS_PACKAGES := qemu-system-x86 mmdebstrap e2fsprogs util-linux openssh-client
# Without it: no virtual machines; all else works, and `partywall doctor` says so.
VM_PACKAGES := qemu-system-x86 mmdebstrap lz4 zstd
# Without them: no guard and no trace; all else builds and works, and `partywall doctor` says so.
BPF_PACKAGES := clang libbpf-dev linux-libc-dev iproute2
# Without them tests skip by name. Commands for each: a browser, servers, readers of traces and rules, a service under load.
TEST_PACKAGES := chromium chromium-driver nginx-light nftables tshark openssh-client openssh-server fio \
    ipmitool openipmi nut-server tomcat10-common default-jre-headless prometheus shellcheck \
    slurmctld slurmd slurm-client $(LIBVIRT_PACKAGES)
# Root images of guests that tests need.
TEST_ROOTS := fio,stress-ng nginx-light
# All but helpers, in the order of docs/benchmarks.md.
BENCHES := $(shell sed -n 's/^- bench: \(.*\)/benches\/\1.py/p' benches/claims.yaml | uniq)
PEERS := fio stress-ng mbw sysbench iperf3 strace nginx-light wrk apache2-utils tomcat10-common default-jre-headless \
    openipmi ipmitool nut-server nut-client openssh-client openssh-server xfsprogs \
    postgresql gcc mmdebstrap lintian rpm rpmlint qemu-user-static
# Not in Debian, so kept out of the system.
PEERS_OWN := benches/.peers
LOCUST := locust==2.*
# As the extra `record` has them, in an environment of their own: they need an older h11 than the tests.
PROXY := 'mitmproxy>=11.0' 'bcrypt<5'
K6 := go.k6.io/k6@v1.8.1
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
FUZZ_SECONDS ?= 60
FUZZ_EXAMPLES ?= 2000

# What makes a release, in an environment of its own. The other machine's agent is built in a root of Debian's packages.
RELEASE_TOOLS := packaging/.tools
RELEASE_PACKAGES := mmdebstrap

PIP_OPTIONS := --disable-pip-version-check --progress-bar on

# $(call install,PACKAGES): those that are missing.
define install
@missing=$$(for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
if [ -n "$$missing" ]; then $(SUDO) apt-get update -qq && $(SUDO) DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi
endef

.PHONY: help install setup build wheel release release-lock docs-site image versions demo vm libvirt proxy xen-lab hosts test test-packages test-setup agent-tests test-agent test-uptimes test-host test-slow test-controller test-fast lint fmt generate editor bench bench-setup bench-plants long-test fuzz clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# The compiler computes while downloads wait. What only tests need is not installed.
install: ## install what measuring needs: system packages, Python packages and the agent
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j 2) $(VENV)/.ready $(AGENT)

setup: $(VENV)/.dev $(AGENT) ## install system packages, the Python environment with all that tests need, and the agent

build: $(AGENT) ## build the agent

wheel: setup ## build dist/partywall-VERSION-….whl: all of Partywall, the agent included, for machines like this one
	@rm -rf dist
	@$(VENV)/bin/hatchling build -t wheel -d dist
	@ls dist/*.whl

# RELEASE="--machine x86_64 --only deb13" narrows it down; --agents FOLDER takes agents that were built before.
release: setup $(RELEASE_TOOLS)/.ready ## make all that is released, for x86-64 and aarch64, in dist/: wheels, source, deb, rpm (docs/install.md)
	$(call install,$(RELEASE_PACKAGES))
	$(PY) -m labs.release $(RELEASE)

release-lock: $(RELEASE_TOOLS)/.ready ## choose the newest versions of all Python packages that the deb and the rpm bring
	$(RELEASE_TOOLS)/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade -o packaging/requirements.txt

$(RELEASE_TOOLS)/.ready: packaging/tools.txt
	python3 -m venv $(RELEASE_TOOLS)
	$(RELEASE_TOOLS)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# SITE_URL and SOURCE_URL: where the site and the repository will be, for the catalogue of schemas and for links.
docs-site: $(RELEASE_TOOLS)/.ready ## make a site of docs/ in build/site, with a search, for any web server or none
	NO_MKDOCS_2_WARNING=1 $(RELEASE_TOOLS)/bin/mkdocs build --quiet --strict --config-file packaging/site/mkdocs.yml

ENGINE ?= podman
image: wheel ## build the container image partywall from the wheel (docs/container.md); ENGINE=docker: with Docker
	$(ENGINE) build -t partywall -f Containerfile dist

demo: install ## measure how well this host isolates its tenants, and show the report (about three minutes)
	@code=0; $(VENV)/bin/partywall run demo || code=$$?; [ $$code -le 1 ] || [ $$code = 3 ] || exit $$code

vm: setup ## get a kernel for virtual machines, and see whether they come up here
	$(VENV)/bin/partywall vm prepare
	$(VENV)/bin/partywall vm check

libvirt: setup ## install what the backend libvirt needs, and a daemon for its tests
	$(call install,$(LIBVIRT_PACKAGES))
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[libvirt]'

xen-lab: libvirt vm ## boot Xen with a small dom0, emulated, measure PV guests in it, and run the guard there (some minutes; the first time more)
	$(call install,$(XEN_LAB_PACKAGES))
	$(SUDO) $(CURDIR)/$(PY) -m labs.xen.lab

hosts: wheel ## try Partywall on stock distributions booted in QEMU, and write the matrix in docs/hosts.md (hours if emulated)
	$(call install,$(HOSTS_PACKAGES))
	$(SUDO) $(CURDIR)/$(PY) -m labs.hosts.lab --write-docs

# Tests that touch the host would disturb each other, so they run alone; all others on every CPU.
test: test-agent test-host test-controller ## run the tests of both halves (with -j 2 in less time)

test-packages: $(VENV)/.packages ## install the packages without which tests skip
	$(call install,$(TEST_PACKAGES))

# Root images need root; so do the tests that use them.
test-setup: test-packages proxy $(VENV)/.dev ## install all without which tests skip: packages, libvirt's library, a proxy, root images
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[libvirt]'
	$(VENV)/bin/partywall vm prepare
	@[ -x $(PEERS_OWN)/bin/actionlint ] || GOBIN=$(CURDIR)/$(PEERS_OWN)/bin go install $(ACTIONLINT) || echo "no actionlint: it needs Go; a test of workflows skips" >&2
	@[ "$$(id -u)" != 0 ] || for root in $(TEST_ROOTS); do $(VENV)/bin/partywall vm prepare --root $$root; done

# With -j 2 the tests of the host run beside what only computes, which therefore leaves the CPUs to them.
LAST := nice -n 19
# Cargo would look for make's job server, which only a make in a recipe gets.
test-agent: $(VENV)/.packages ## run the agent's tests
	cd agent && MAKEFLAGS= $(LAST) cargo test --quiet $(if $(PARTYWALL_SKIPS),-- --show-output | python3 ../tests/skips.py)

agent-tests: $(VENV)/.packages
	cd agent && MAKEFLAGS= $(LAST) cargo test --quiet --no-run

# What the clock shows at the start of each test: that of a machine that has just booted, and of one that is up for 30 days.
UPTIMES_S := 0 2592000
TIMES := 1
test-uptimes: $(VENV)/.packages ## run the agent's tests TIMES=1 times as just after a boot and after 30 days, beside two busy loops, as root
	cd agent && trap 'kill $$(jobs -p)' EXIT && for _ in 1 2; do while :; do :; done & done && \
	for uptime in $(UPTIMES_S); do for _ in $$(seq $(TIMES)); do \
	  MAKEFLAGS= PARTYWALL_TEST_UPTIME_S=$$uptime cargo test --quiet $(TESTS) || exit 1; done; done

test-host: setup ## run the controller's tests that touch the host
	$(PY) -m pytest -m "host and not slow" --durations=10

test-slow: setup ## run the slow tests, most of which move guests (about fifteen minutes if they are emulated)
	$(PY) -m pytest -m slow

test-controller: setup ## run the controller's other tests
	$(LAST) $(PY) -m pytest -m "not host and not slow" -n auto --dist loadfile --durations=10

# The crates whose tests need no host, and the tests of the controller that need neither host nor agent.
PURE_CRATES := alignment allocation facts record wire
test-fast: $(VENV)/.dev ## run the pure tests of both halves: no host, no agent, no network (under a minute once built)
	cd agent && cargo test --quiet $(PURE_CRATES:%=-p partywall-%)
	$(PY) -m pytest -m "not host and not slow and not long"

# VERSIONS="--python 3.13 --only lowest -- tests/core/stats" narrows it down.
versions: setup ## try the oldest and newest dependencies on every Python found (five minutes each)
	$(PY) -m labs.versions $(VERSIONS)

lint: setup ## check format, types, layers and lints of both halves
	cd agent && cargo fmt --check && MAKEFLAGS= $(LAST) cargo clippy --all-targets --quiet -- -D warnings
	$(VENV)/bin/ruff format --check src tests benches labs hatch_build.py
	$(VENV)/bin/ruff check src tests benches labs hatch_build.py
	$(LAST) $(VENV)/bin/mypy
	$(LAST) $(VENV)/bin/lint-imports

generate: setup ## write anew what is generated from the code and checked in; tests compare
	$(AGENT) catalogue > src/partywall/agent/catalogue.json
	$(AGENT) counters > src/partywall/agent/counters.json
	$(AGENT) schema > schema/agent.schema.json
	$(VENV)/bin/partywall scenario schema > schema/scenario.schema.json
	$(VENV)/bin/partywall load schema > schema/load-plan.schema.json
	$(PY) -m labs.schemas
	UPDATE_DOCS=1 $(PY) -m pytest -q tests/test_catalogue.py tests/test_papers.py tests/test_benchmarks.py tests/test_watch_always.py -k "index or generated"

fmt: setup ## format both halves
	cd agent && cargo fmt
	$(VENV)/bin/ruff format src tests benches labs hatch_build.py
	$(VENV)/bin/ruff check --fix src tests benches labs hatch_build.py

bench-setup: libvirt proxy $(RELEASE_TOOLS)/.ready ## install the programs that benchmarks need and compare with
	$(call install,$(PEERS))
	@command -v chromedriver >/dev/null || $(SUDO) apt-get install -y --no-install-recommends chromium chromium-driver || echo "no Chromium: benchmarks of the web page and of recorded loads need it" >&2
	@[ -d $(PEERS_OWN)/node_modules/axe-core ] || npm install --silent --ignore-scripts --prefix $(PEERS_OWN) axe-core@4.14.1 || echo "no axe-core: web_access.py needs npm" >&2
	@[ -x $(PEERS_OWN)/bin/locust ] || { python3 -m venv $(PEERS_OWN) && $(PEERS_OWN)/bin/pip install --quiet --disable-pip-version-check $(LOCUST); }
	@command -v k6 >/dev/null || [ -x $(PEERS_OWN)/bin/k6 ] || GOBIN=$(CURDIR)/$(PEERS_OWN)/bin go install $(K6) || echo "no k6: it needs Go 1.25 or newer; load_script_cost.py goes without it" >&2

proxy: $(PEERS_OWN)/proxy/bin/mitmdump ## install the proxy that `partywall load record` uses, in an environment of its own

$(PEERS_OWN)/proxy/bin/mitmdump:
	python3 -m venv $(PEERS_OWN)/proxy
	$(PEERS_OWN)/proxy/bin/pip install --quiet --disable-pip-version-check $(PROXY)

editor: ## bundle the editor of the web page anew, from editor/ (needs npm; gives the same bytes)
	cd editor && npm ci --ignore-scripts && node node_modules/esbuild/install.js && npm run build

bench: bench-setup ## run every benchmark in its short form; each prints its figure last and fails if its bar is not met
	@failed=0; for file in $(BENCHES); do echo "== $$file"; $(PY) $$file --quick $(if $(RECORD),--record) || failed=1; done; exit $$failed

# PLANTS="guard_kill words" narrows it down.
bench-plants: bench-setup ## run every benchmark in its short form, as it is and with each fault planted, and record both
	$(PY) -m benches.planted $(PLANTS)

long-test: bench-setup ## run the slow tests and the benchmarks in their long form
	$(VENV)/bin/partywall vm prepare --root fio,stress-ng || true
	$(MAKE) test-slow
	@failed=0; for file in $(BENCHES); do echo "== $$file"; $(PY) $$file $(if $(RECORD),--record) || failed=1; done; exit $$failed

# libFuzzer needs a nightly compiler; without one the decoder is tried with as many random lines by proptest instead.
fuzz: setup ## fuzz the wire decoder, the readers of servers' responses (FUZZ_SECONDS=60 each) the decoders of scenarios, load plans and recordings, and spoilt hosts (FUZZ_EXAMPLES=2000 a test)
	@if cargo +nightly --version >/dev/null 2>&1; then \
	  command -v g++ >/dev/null || $(SUDO) apt-get install -y --no-install-recommends g++; \
	  cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz; \
	  mkdir -p agent/fuzz/corpus/wire && cd agent && \
	  cargo +nightly fuzz run wire fuzz/corpus/wire ../schema/golden -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 && \
	  mkdir -p fuzz/corpus/response && \
	  cargo +nightly fuzz run response fuzz/corpus/response fuzz/seeds/response -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1; \
	else \
	  echo "no nightly compiler (rustup toolchain install nightly): proptest takes the place of libFuzzer"; \
	  cd agent && export PARTYWALL_TEST_LIMIT_S=86400 && PROPTEST_CASES=1000000 cargo test --release -p partywall-wire && PROPTEST_CASES=1000000 cargo test --release -p partywall-load --lib http; \
	fi
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PY) -m pytest tests/run/document/test_fuzz.py tests/load/test_har.py tests/power/test_power_meters.py tests/load/test_load_plan.py tests/hosts/test_spoilt_hosts.py --timeout=3600

clean: ## remove what was built
	rm -rf $(VENV) agent/target src/partywall/_bin dist build $(RELEASE_TOOLS)

$(VENV)/.packages: pyproject.toml
	@echo "setup: system packages, as far as they are missing (apt-get needs root; up to 300 MB with QEMU and clang)"
	$(call install,$(PACKAGES))
	@missing=$$(for p in $(BPF_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update -qq && $(SUDO) DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing \
	|| echo "no eBPF tool chain ($$missing): partywall guard and trace will be missing" >&2; fi
	@missing=$$(for p in $(VM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update -qq && $(SUDO) DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing \
	|| echo "no QEMU or no mmdebstrap ($$missing): backend qemu, or guests that hold programs, will be missing" >&2; fi
	@missing=$$(for p in $(SSH_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -n "$$missing" ]; then $(SUDO) apt-get update -qq && $(SUDO) DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing \
	|| echo "no ssh ($$missing): backend ssh will be missing" >&2; fi
	@mkdir -p $(@D) && touch $@

$(VENV)/.ready: pyproject.toml | $(VENV)/.packages
	@echo "setup: Python packages into $(VENV) (about 150 MB to download; half a minute)"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install $(PIP_OPTIONS) -e . | sed -u -n '/^Collecting/p;/^Successfully/p'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.ready
	@echo "setup: Python packages for tests and linters (about 75 MB to download; half a minute)"
	@$(VENV)/bin/pip install $(PIP_OPTIONS) -e '.[dev]' | sed -u -n '/^Collecting/p;/^Successfully/p'
	@touch $@

# Cargo knows best whether anything has changed.
$(AGENT): FORCE | $(VENV)/.packages
	@[ -x $(BUILT) ] || echo "setup: the agent in Rust (about 19 MB of crates to download; three to ten minutes on the first build)"
	@cd agent && MAKEFLAGS= cargo build --release
	@mkdir -p $(@D) && cmp -s $(BUILT) $@ || install -m 755 $(BUILT) $@
FORCE:
