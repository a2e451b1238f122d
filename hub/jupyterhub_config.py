# JupyterHub on one Linux machine, on which each person has an account with a password.
# Start it as root.
import os
import sys
from pathlib import Path

c = get_config()

# For your own browser; the class needs TLS, from a web server in front of this address.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
# Anyone with a password on this machine may sign in.
c.Authenticator.allow_all = True
c.Authenticator.admin_users = set()

# Students work in the environment in which the hub runs.
c.Spawner.default_url = "/lab"
c.Spawner.environment = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}
