# Sourced by run_all.sh: leaves an environment active that meets requirements.txt.

check=src/rarevision/run/environment.py

usable() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
met() { usable "$1" && "$1" "$check" requirements.txt >/dev/null; }

if met python; then
  : # the active environment serves
elif [ -x .venv/bin/python ] && met .venv/bin/python; then
  source .venv/bin/activate
else
  python=
  for name in python3 python3.13 python3.12 python3.11; do
    if usable "$name"; then python=$name; break; fi
  done
  [ -n "$python" ] || { echo "Python 3.11 or newer is needed; none of python3, python3.11-3.13 is." >&2; exit 1; }
  echo "set-up: installing requirements.txt into .venv ($("$python" --version)); several GB, once"
  if ! "$python" -m venv .venv; then
    # Debian keeps venv in a package of its own
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      apt-get update -qq && apt-get install -y -qq python3-venv && "$python" -m venv --clear .venv
    else
      echo "python3 cannot make a virtual environment; on Debian: sudo apt-get install python3-venv" >&2
      exit 1
    fi
  fi
  source .venv/bin/activate
  python -m pip install --quiet --disable-pip-version-check -r requirements.txt
  if ! left=$(python "$check" requirements.txt); then echo "set-up: not met after installing: $left" >&2; exit 1; fi
fi
unset check
