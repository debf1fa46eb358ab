"""A management controller on 127.0.0.1, as servers have them. controller.py FORM; prints its port.

Forms: see FORMS. With `tls` in the name it has a certificate that it made itself, in own.pem of the working folder.
"""

import gzip
import json
import ssl
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

POWER = {"PowerControl": [{"Name": "System", "PowerConsumedWatts": 150}]}
CHASSIS = "/redfish/v1/Chassis/1"
SENSOR = f"{CHASSIS}/Sensors/total_power"
SUPPLIES = f"{CHASSIS}/PowerSubsystem/PowerSupplies"
ABSENT, ENABLED = {"Status": {"State": "Absent"}}, {"Status": {"State": "Enabled"}}
FORMS = {
    "plain": {f"{CHASSIS}/Power": POWER},
    "new": {f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"Reading": 150, "DataSourceUri": SENSOR}}},
    "second": {
        f"{CHASSIS}/Power": {
            "PowerControl": [
                {"Name": "CPU Sub-system Power", "PowerLimit": {}},
                {"Name": "Server Power Control", "PowerConsumedWatts": 150},
            ]
        }
    },
    "parts": {
        f"{CHASSIS}/Power": {
            "PowerControl": [
                {"Name": "CPU Sub-system Power", "PowerConsumedWatts": 60},
                {"Name": "Server Power Control", "PowerConsumedWatts": 150},
                {"Name": "Memory Sub-system Power", "PowerConsumedWatts": 12},
            ]
        }
    },
    "fujitsu": {
        f"{CHASSIS}/Power": {
            "PowerControl": [{"PowerConsumedWatts": None}],
            "Oem": {"ts_fujitsu": {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": 150}}},
        }
    },
    "old-hpe": {f"{CHASSIS}/Power": {"PowerConsumedWatts": 150, "PowerCapacityWatts": 1600}},
    "null": {f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"Reading": None}}, f"{CHASSIS}/Power": POWER},
    "error-500": {f"{CHASSIS}/EnvironmentMetrics": 500, f"{CHASSIS}/Power": POWER},
    "forbidden": {f"{CHASSIS}/EnvironmentMetrics": 403, f"{CHASSIS}/Power": POWER},
    "web-page": {f"{CHASSIS}/EnvironmentMetrics": "<html>Not found</html>", f"{CHASSIS}/Power": POWER},
    "sensor-link": {
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"@odata.id": SENSOR}},
        SENSOR: {"Reading": 150, "ReadingUnits": "W"},
    },
    "supplies": {
        SUPPLIES: {
            "Members": [{"@odata.id": f"{SUPPLIES}/0"}],
            "Members@odata.nextLink": f"{SUPPLIES}/more",
        },
        f"{SUPPLIES}/more": {"Members": [{"@odata.id": f"{SUPPLIES}/1"}, {"@odata.id": f"{SUPPLIES}/2"}]},
        f"{SUPPLIES}/0": ENABLED,
        f"{SUPPLIES}/0/Metrics": {"InputPowerWatts": {"Reading": 100}},
        f"{SUPPLIES}/1": ABSENT,
        f"{SUPPLIES}/2": ENABLED,
        f"{SUPPLIES}/2/Metrics": {"InputPowerWatts": {"Reading": 50}},
    },
    "other-name": {"/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/System.Embedded.1"}]}},
    "password": {f"{CHASSIS}/EnvironmentMetrics": 401},
}


class Controller(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    form = ""

    def log_message(self, *_):
        pass

    def do_GET(self):
        path, more = self.path, {}
        if "slash" in self.form and not path.endswith("/"):
            return self._send(308, b"", {"Location": path + "/"})
        content = FORMS[self.form.partition("+")[0]].get(path.rstrip("/"), 404)
        status = content if isinstance(content, int) else 200
        if status != 200:
            content = {"error": {"code": "Base.1.0.GeneralError"}}
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        if "gzip" in self.form:
            if "gzip" not in self.headers.get("Accept-Encoding", ""):
                return self._send(406, b"", more)
            body, more = gzip.compress(body), {"Content-Encoding": "gzip"}
        return self._send(status, body, more)

    def _send(self, status, body, more):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


Controller.form = sys.argv[1]
server = HTTPServer(("127.0.0.1", 0), Controller)
if "tls" in Controller.form:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "own.key", "-out", "own.pem",
         "-days", "2", "-subj", "/CN=bmc.invalid"], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("own.pem", "own.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
