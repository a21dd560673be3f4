"""What Streamlit runs: ``streamlit run dashboard/app.py -- --dataset DIR``.

Streamlit runs a file and not a module, so this one only names the package, which is found under
the same name in a checkout and in a wheel.
"""

from bandwatch.dashboard.main import main

main()
