"""The dashboard: Streamlit pages and Plotly charts over the dataset; no statistics of its own."""
