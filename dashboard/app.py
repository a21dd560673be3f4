"""What Streamlit runs: ``streamlit run dashboard/app.py -- --dataset DIR``.

Streamlit runs a file, not a module, so this one finds the package it lies in: ``dashboard`` in a
checkout, ``bandwatch.dashboard`` in a wheel.
"""

import importlib
import sys
from pathlib import Path

folder = Path(__file__).resolve().parent
package = folder.name
while (folder.parent / "__init__.py").is_file():
    folder = folder.parent
    package = f"{folder.name}.{package}"
if str(folder.parent) not in sys.path:
    sys.path.insert(0, str(folder.parent))

importlib.import_module(f"{package}.main").main()
